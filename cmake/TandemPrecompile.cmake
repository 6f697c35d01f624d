# Headers that are compiled once for all: a source then takes about a third less time.
option(TANDEM_PRECOMPILE "Precompile the headers that most sources include" ON)

if(TANDEM_PRECOMPILE)
  # For libraries. Executables have other flags, and tests include more: theirs are in tests/CMakeLists.txt.
  add_library(tandem_precompiled STATIC ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(tandem_precompiled PRIVATE tandem_flags absl::statusor absl::strings absl::synchronization)
  target_precompile_headers(tandem_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
endif()

# tandem_precompile(TARGET OWNER): compiles TARGET with OWNER's headers. Both must have the same compiler options: GCC takes
# the owner's idea of -ffp-contract and the like for the whole file, and says nothing.
function(tandem_precompile TARGET OWNER)
  if(TANDEM_PRECOMPILE)
    target_precompile_headers(${TARGET} REUSE_FROM ${OWNER})
  endif()
endfunction()

# tandem_parses_flags(TARGET): its sources declare flags and hand the work to others. CLI11 is all headers: most of what they
# compile to is CLI11's code, the same in each, which nobody waits for. No measured loop belongs into such a target.
if(TANDEM_PRECOMPILE)
  add_library(tandem_precompiled_cli STATIC ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_compile_options(tandem_precompiled_cli PRIVATE $<$<CONFIG:Release>:-O1>)
  target_include_directories(tandem_precompiled_cli PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(tandem_precompiled_cli PRIVATE
    tandem_flags absl::statusor absl::strings absl::synchronization CLI11::CLI11)
  target_precompile_headers(tandem_precompiled_cli PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled_cli.h)
endif()
function(tandem_parses_flags TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(TANDEM_PRECOMPILE)
    target_compile_options(${TARGET} PRIVATE -fPIC)  # an executable too, as the header was
    set_property(TARGET ${TARGET} PROPERTY PRECOMPILE_HEADERS_REUSE_FROM tandem_precompiled_cli)
  endif()
endfunction()

# tandem_same_bits(TARGET): its arithmetic gives the same bits on every instruction set: a product that is added is rounded first.
function(tandem_same_bits TARGET)
  target_compile_options(${TARGET} PRIVATE -ffp-contract=off)
  set_target_properties(${TARGET} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
