# SPDX-License-Identifier: Apache-2.0
# Libraries, tests, and code generation for protobuf and gRPC.

# tandem_library(NAME [INTERNAL] PUBLIC_HDRS a.h ... DETAIL_HDRS b.h ... DEPS t1 ...): declares a static library;
# tandem_sources() adds its sources. DEPS are the libraries that its headers or sources need. `cmake --install` installs the
# library, unless it is INTERNAL, with two lists of headers: PUBLIC_HDRS are the interface that users include, and
# DETAIL_HDRS are what public headers of any library include besides. All other headers are private.
# tests/scripts/include_test.py checks that DETAIL_HDRS are complete.
function(tandem_library NAME)
  cmake_parse_arguments(ARG "INTERNAL" "" "PUBLIC_HDRS;DETAIL_HDRS;DEPS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tandem_library(${NAME}): unexpected arguments: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  add_library(${NAME} STATIC)
  set_target_properties(${NAME} PROPERTIES LINKER_LANGUAGE CXX TANDEM_DEPS "${ARG_DEPS}")
  target_include_directories(${NAME} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem>)
  target_link_libraries(${NAME} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:tandem_flags>)
  target_compile_features(${NAME} PUBLIC cxx_std_20)
  if(ARG_INTERNAL)
    return()
  endif()
  file(RELATIVE_PATH module ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(header ${ARG_PUBLIC_HDRS} ${ARG_DETAIL_HDRS})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/${module}/${folder})
  endforeach()
  list(TRANSFORM ARG_PUBLIC_HDRS PREPEND ${module}/)
  set_property(GLOBAL APPEND PROPERTY TANDEM_PUBLIC_HEADERS ${ARG_PUBLIC_HDRS})  # tests/install compiles each by itself.
  set_property(GLOBAL APPEND PROPERTY TANDEM_LIBRARIES ${NAME})
endfunction()

# tandem_sources(LIBRARY [UNITY | COLD | STRICT_FP] SRCS a.cc ... [DEPS t1 ...] [DEFINITIONS NAME=value ...]): adds a group of
# sources to LIBRARY. A library has one group for each set of compile options:
#   (no word)  each source is compiled by itself, with the ordinary options
#   UNITY      the sources are compiled together (tandem_unity)
#   COLD       the sources are compiled together and with -O1 (tandem_cold)
#   STRICT_FP  each source is compiled by itself, without fused multiply-add (tandem_strict_fp)
# The function may be called several times for one library; sources of different calls are never compiled together. DEPS are
# libraries that only these sources include, such as nlohmann's JSON: users of LIBRARY link them but do not see their headers.
function(tandem_sources LIBRARY)
  cmake_parse_arguments(ARG "UNITY;COLD;STRICT_FP" "" "SRCS;DEPS;DEFINITIONS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SRCS)
    message(FATAL_ERROR "tandem_sources(${LIBRARY}): no SRCS, or unexpected arguments: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if((ARG_UNITY AND ARG_COLD) OR (ARG_STRICT_FP AND (ARG_UNITY OR ARG_COLD)))
    message(FATAL_ERROR "tandem_sources(${LIBRARY}): give at most one of UNITY, COLD and STRICT_FP")
  endif()
  get_target_property(deps ${LIBRARY} TANDEM_DEPS)
  get_target_property(groups ${LIBRARY} TANDEM_GROUPS)
  if(NOT groups)
    set(groups 0)
  endif()
  math(EXPR groups "${groups} + 1")
  set_target_properties(${LIBRARY} PROPERTIES TANDEM_GROUPS ${groups})
  set(objects ${LIBRARY}_${groups})
  add_library(${objects} OBJECT ${ARG_SRCS})
  target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${objects} PRIVATE ${deps} ${ARG_DEPS} tandem_flags)
  target_compile_definitions(${objects} PRIVATE ${ARG_DEFINITIONS})
  if(ARG_COLD)
    tandem_cold(${objects})
  elseif(ARG_STRICT_FP)
    tandem_strict_fp(${objects})
  else()
    tandem_precompile(${objects} tandem_precompiled)
    if(ARG_UNITY)
      tandem_unity(${objects})
    endif()
  endif()
  target_sources(${LIBRARY} PRIVATE $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(${LIBRARY} PRIVATE ${ARG_DEPS})
endfunction()

# tandem_test_code(TARGET [OPTIMIZED]): compiles a test, or a library that serves only tests: together (tandem_unity), with
# the precompiled headers of tests/CMakeLists.txt. The code under test is always optimized. The test itself is compiled with
# -O0, which is a quarter faster (nearly twice as fast with AddressSanitizer), unless it is OPTIMIZED (-O1) because it
# computes much, for example the reference of a reduction.
set(TANDEM_TEST_LEVEL_CONFIGS Release)
if(TANDEM_SANITIZE MATCHES address)
  string(APPEND TANDEM_TEST_LEVEL_CONFIGS ",RelWithDebInfo")
endif()
function(tandem_test_code TARGET)
  cmake_parse_arguments(ARG "OPTIMIZED" "" "" ${ARGN})
  if(ARG_OPTIMIZED)
    set(level -O1)
    set(headers tandem_precompiled_optimized_tests)
  else()
    set(level -O0)
    set(headers tandem_precompiled_tests)
  endif()
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:${TANDEM_TEST_LEVEL_CONFIGS}>:${level}>)
  get_target_property(type ${TARGET} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    target_compile_options(${TARGET} PRIVATE -fPIE)  # The headers were precompiled with -fPIE.
  endif()
  target_link_libraries(${TARGET} PRIVATE tandem_testing tandem_flags GTest::gmock)
  tandem_precompile(${TARGET} ${headers})
  tandem_unity(${TARGET})
endfunction()

# tandem_test(NAME [OPTIMIZED] SRCS a_test.cc ... DEPS t1 ... [LABELS l] [TIMEOUT seconds]): declares one GoogleTest binary
# and one ctest entry of the same name.
function(tandem_test NAME)
  cmake_parse_arguments(ARG "OPTIMIZED" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")  # Sanitizers make a test up to five times slower.
  endif()
  add_executable(${NAME} ${ARG_SRCS})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  if(ARG_OPTIMIZED)
    tandem_test_code(${NAME} OPTIMIZED)
  else()
    tandem_test_code(${NAME})
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} --gtest_brief=1)
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "${TANDEM_TEST_ENVIRONMENT}")
endfunction()

# tandem_proto(NAME PROTOS rel/path.proto ... [RARE rel/path.proto ...] [GRPC rel/path.proto ...] [LIKE OTHER] DEPS ...): generates
# message code for PROTOS and RARE, and gRPC stubs for GRPC in a second library NAME_grpc, which only tests use. RARE
# messages are those that a job seldom sends: their code is compiled with -O1. With LIKE the precompiled headers of OTHER, which is
# such a library too, are taken.
function(tandem_proto NAME)
  cmake_parse_arguments(ARG "" "LIKE" "PROTOS;RARE;GRPC;DEPS" ${ARGN})
  set(out ${PROJECT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  foreach(proto ${ARG_PROTOS} ${ARG_RARE})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(generated ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc --cpp_out=${out} -I ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto} VERBATIM)
    list(APPEND sources ${generated})
    if(proto IN_LIST ARG_RARE)
      set_source_files_properties(${out}/${stem}.pb.cc PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
    endif()
    get_filename_component(dir ${stem} DIRECTORY)
    install(FILES ${out}/${stem}.pb.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/${dir})
    install(FILES ${proto} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/${dir})
  endforeach()
  add_library(${NAME} STATIC ${sources})
  target_include_directories(${NAME} SYSTEM PUBLIC $<BUILD_INTERFACE:${out}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem>)
  target_link_libraries(${NAME} PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_LIKE)
    tandem_precompile(${NAME} ${ARG_LIKE})
  elseif(TANDEM_PRECOMPILE)
    target_precompile_headers(${NAME} PRIVATE
      <google/protobuf/message.h> <google/protobuf/descriptor.h> <google/protobuf/generated_message_reflection.h>
      <google/protobuf/generated_message_bases.h> <google/protobuf/reflection_ops.h> <google/protobuf/wire_format.h>)
  endif()
  set_property(GLOBAL APPEND PROPERTY TANDEM_LIBRARIES ${NAME})

  foreach(proto ${ARG_GRPC})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(generated ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
    add_custom_command(OUTPUT ${generated}
      COMMAND protobuf::protoc --grpc_out=${out} --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN}
              -I ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto} VERBATIM)
    list(APPEND grpc_sources ${generated})
  endforeach()
  if(ARG_GRPC)
    add_library(${NAME}_grpc STATIC EXCLUDE_FROM_ALL ${grpc_sources})
    target_link_libraries(${NAME}_grpc PUBLIC ${NAME} gRPC::grpc++)
    target_compile_options(${NAME}_grpc PRIVATE $<$<CONFIG:Release>:-O0>)
    tandem_unity(${NAME}_grpc)
  endif()
endfunction()
