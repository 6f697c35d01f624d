# SPDX-License-Identifier: Apache-2.0
# Headers that are compiled once, and the three ways in which a group of sources can differ from the ordinary options.
# Libraries choose them by a word in tandem_sources() (TandemTargets.cmake); programs call the functions below.

option(TANDEM_PRECOMPILE "Precompile the headers that most sources include (a source then compiles in two thirds of the time)" ON)

# tandem_precompiled_headers(OWNER [OPTION...]): precompiles cmake/precompiled.h for libraries that are compiled with OPTIONs.
# Executables have other flags, and tests include more headers: tests/CMakeLists.txt precompiles theirs.
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
tandem_precompiled_headers(tandem_precompiled_cold $<$<CONFIG:Release>:-O1>)
tandem_precompiled_headers(tandem_precompiled_strict_fp -ffp-contract=off)

# tandem_precompile(TARGET OWNER): compiles TARGET with the precompiled headers of OWNER. Both must have the same compiler
# options: GCC silently applies the owner's -ffp-contract and similar options to the whole source.
function(tandem_precompile TARGET OWNER)
  if(TANDEM_PRECOMPILE)
    target_precompile_headers(${TARGET} REUSE_FROM ${OWNER})
  endif()
endfunction()

# tandem_precompile_programs(): compiles the programs of the current folder with precompiled headers of their own, because
# executables have other flags than libraries. Programs that already reuse precompiled headers keep those.
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
    get_target_property(owner ${target} PRECOMPILE_HEADERS_REUSE_FROM)
    if(type STREQUAL EXECUTABLE AND NOT owner AND NOT target STREQUAL tandem_precompiled_programs)
      tandem_precompile(${target} tandem_precompiled_programs)
    endif()
  endforeach()
endfunction()

# tandem_unity(TARGET): compiles up to twenty sources of TARGET together (a unity build), so that the headers and templates
# that they share are compiled once. This halves the compile time. Names that are local to a source must be unique in the
# group. Measured loops stay out of unity builds, because the compiler would inline other code into them; so do sources that
# include Highway's foreach_target.h, which a compilation can include only once.
function(tandem_unity TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
endfunction()

# tandem_cold(TARGET): compiles the sources of TARGET together and with -O1. This suits code that runs rarely and includes
# large headers, such as CLI11 and nlohmann's JSON: flags, launching, reports, diagnosis. It does not suit a measured loop.
function(tandem_cold TARGET)
  tandem_unity(${TARGET})
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(TANDEM_PRECOMPILE)
    target_compile_options(${TARGET} PRIVATE -fPIC)  # The headers were precompiled with -fPIC, so executables need it too.
    tandem_precompile(${TARGET} tandem_precompiled_cold)
  endif()
endfunction()

# tandem_strict_fp(TARGET): compiles the sources of TARGET so that every instruction set computes the same bits: the compiler
# may not fuse a multiplication and an addition, which would skip the rounding of the product.
function(tandem_strict_fp TARGET)
  target_compile_options(${TARGET} PRIVATE -ffp-contract=off)
  tandem_precompile(${TARGET} tandem_precompiled_strict_fp)
endfunction()
