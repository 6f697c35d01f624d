# SPDX-License-Identifier: Apache-2.0
# cmake --install: libraries, headers, the `tandem` command and find_package(Tandem).
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY TANDEM_LIBRARIES)
install(TARGETS ${libraries} EXPORT TandemTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
list(TRANSFORM libraries PREPEND Tandem:: OUTPUT_VARIABLE TANDEM_EXPORTED_LIBRARIES)  # for TandemConfig.cmake.in
install(EXPORT TandemTargets NAMESPACE Tandem:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TandemConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TandemConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TandemConfig.cmake ${PROJECT_BINARY_DIR}/TandemConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
