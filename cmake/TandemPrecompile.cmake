# Headers that are compiled once for all: a source then takes about a third less time.
option(TANDEM_PRECOMPILE "Precompile the headers that most sources include" ON)

# tandem_precompiled_headers(OWNER [OPTION...]): for libraries that are compiled with OPTIONs. Executables have other flags, and
# tests include more: theirs are in tests/CMakeLists.txt.
function(tandem_precompiled_headers OWNER)
  if(TANDEM_PRECOMPILE)
    add_library(${OWNER} STATIC ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
    target_compile_options(${OWNER} PRIVATE ${ARGN})
    target_link_libraries(${OWNER} PRIVATE
      tandem_flags absl::statusor absl::strings absl::synchronization protobuf::libprotobuf)
    target_precompile_headers(${OWNER} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  endif()
endfunction()
tandem_precompiled_headers(tandem_precompiled)

# tandem_precompile(TARGET OWNER): compiles TARGET with OWNER's headers. Both must have the same compiler options: GCC takes
# the owner's idea of -ffp-contract and the like for the whole file, and says nothing.
function(tandem_precompile TARGET OWNER)
  if(TANDEM_PRECOMPILE)
    target_precompile_headers(${TARGET} REUSE_FROM ${OWNER})
  endif()
endfunction()

# tandem_precompile_programs(): compiles the programs of the current folder with headers of their own, as executables have
# other flags than libraries.
function(tandem_precompile_programs)
  if(NOT TANDEM_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET tandem_precompiled_programs)
    add_executable(tandem_precompiled_programs ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
    target_include_directories(tandem_precompiled_programs PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(tandem_precompiled_programs PRIVATE
      tandem_flags absl::statusor absl::strings absl::synchronization protobuf::libprotobuf)
    target_precompile_headers(tandem_precompiled_programs PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  endif()
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE AND NOT target STREQUAL tandem_precompiled_programs)
      tandem_precompile(${target} tandem_precompiled_programs)
    endif()
  endforeach()
endfunction()

# tandem_bundle(TARGET): its sources are compiled up to twenty at a time, as if they were one: what they include and instantiate
# is compiled once for all of them, which takes half the time. So a name that is local to a source is not that of another source
# of the target. Not for loops that are measured (other things would be inlined into them), nor for sources with Highway's
# foreach_target.h, which a compilation includes once.
function(tandem_bundle TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
endfunction()

# tandem_unhurried(TARGET): what a command line is made of: flags, launching, reports, diagnosis. Bundled, and optimised only as
# far as it compiles quickly (CLI11 and JSON are all headers). No measured loop belongs into such a target.
tandem_precompiled_headers(tandem_precompiled_unhurried $<$<CONFIG:Release>:-O1>)
function(tandem_unhurried TARGET)
  tandem_bundle(${TARGET})
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(TANDEM_PRECOMPILE)
    target_compile_options(${TARGET} PRIVATE -fPIC)  # an executable too, as the header was
    set_property(TARGET ${TARGET} PROPERTY PRECOMPILE_HEADERS_REUSE_FROM tandem_precompiled_unhurried)
  endif()
endfunction()

# tandem_same_bits(TARGET): its arithmetic gives the same bits on every instruction set: a product that is added is rounded first.
tandem_precompiled_headers(tandem_precompiled_same_bits -ffp-contract=off)
function(tandem_same_bits TARGET)
  target_compile_options(${TARGET} PRIVATE -ffp-contract=off)
  if(TANDEM_PRECOMPILE)
    set_property(TARGET ${TARGET} PROPERTY PRECOMPILE_HEADERS_REUSE_FROM tandem_precompiled_same_bits)
  endif()
endfunction()
