# One static library per folder, one test binary per part of a room, and protobuf/gRPC code generation.

# tandem_library(NAME SRCS a.cc ... HDRS a.h ... DEPS t1 ...): HDRS are what `cmake --install` ships.
function(tandem_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${NAME} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_include_directories(${NAME} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem>)
    target_link_libraries(${NAME} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:tandem_flags>)
    target_compile_features(${NAME} PUBLIC cxx_std_20)
    tandem_precompile(${NAME} tandem_precompiled)
  else()
    add_library(${NAME} INTERFACE)
    target_include_directories(${NAME} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem>)
    target_link_libraries(${NAME} INTERFACE ${ARG_DEPS})
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "^cli/")
    return()  # parts of the command, for nobody to link
  endif()
  foreach(header ${ARG_HDRS})
    get_filename_component(sub ${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/${folder}/${sub})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TANDEM_LIBRARIES ${NAME})
endfunction()

# tandem_test_code(TARGET [COMPUTES]): how tests are compiled, and what serves only them: bundled, with the headers of
# tests/CMakeLists.txt. What is tested is optimised; the test itself only where it COMPUTES much (a model of a table, a reference
# of sums): without, it compiles a quarter faster, and nearly twice as fast under AddressSanitizer.
set(TANDEM_TEST_LEVEL_CONFIGS Release)
if(TANDEM_SANITIZE MATCHES address)
  string(APPEND TANDEM_TEST_LEVEL_CONFIGS ",RelWithDebInfo")
endif()
function(tandem_test_code TARGET)
  cmake_parse_arguments(ARG "COMPUTES" "" "" ${ARGN})
  if(ARG_COMPUTES)
    set(level -O1)
    set(headers tandem_precompiled_computing_tests)
  else()
    set(level -O0)
    set(headers tandem_precompiled_tests)
  endif()
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:${TANDEM_TEST_LEVEL_CONFIGS}>:${level}>)
  get_target_property(type ${TARGET} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    target_compile_options(${TARGET} PRIVATE -fPIE)  # as the headers were precompiled
  endif()
  target_link_libraries(${TARGET} PRIVATE tandem_testing tandem_flags GTest::gmock)
  tandem_precompile(${TARGET} ${headers})
  tandem_bundle(${TARGET})
endfunction()

# tandem_test(NAME SRCS a_test.cc ... DEPS t1 ... [LABELS l] [TIMEOUT seconds] [COMPUTES]): one GoogleTest binary, one ctest
# entry.
function(tandem_test NAME)
  cmake_parse_arguments(ARG "COMPUTES" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")  # what sanitizers cost
  endif()
  add_executable(${NAME} ${ARG_SRCS})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  if(ARG_COMPUTES)
    tandem_test_code(${NAME} COMPUTES)
  else()
    tandem_test_code(${NAME})
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} --gtest_brief=1)
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "${TANDEM_SANITIZE_ENVIRONMENT}")
endfunction()

# tandem_proto(NAME PROTOS rel/path.proto ... [RARE rel/path.proto ...] [GRPC rel/path.proto ...] DEPS ...): message code for all
# of PROTOS and RARE, and stock gRPC stubs for GRPC in a second library NAME_grpc (tests and other languages' peers only). RARE
# are messages of which a job sends few: their code is optimised only as far as it compiles quickly.
function(tandem_proto NAME)
  cmake_parse_arguments(ARG "" "" "PROTOS;RARE;GRPC;DEPS" ${ARGN})
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
  if(TANDEM_PRECOMPILE)
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
    tandem_bundle(${NAME}_grpc)
  endif()
endfunction()
