# The library, its public headers, the CMake package and the pkg-config file; the program too.
# Plugins are installed where they are made, in src/CMakeLists.txt.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvxfer)

install(TARGETS kvxfer EXPORT kvxferTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT kvxferTargets NAMESPACE kvxfer:: DESTINATION ${package_dir})

configure_package_config_file(cmake/kvxferConfig.cmake.in ${PROJECT_BINARY_DIR}/kvxferConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvxferConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvxferConfig.cmake
  ${PROJECT_BINARY_DIR}/kvxferConfigVersion.cmake
  cmake/kvxferBackendPlugin.cmake DESTINATION ${package_dir})

# A static library's own needs are its user's; a shared one brings them along.
set(KVXFER_PC_PRIVATE "absl_strings fmt protobuf-lite libcrypto")
set(KVXFER_PC_REQUIRES "absl_status absl_statusor")
if(NOT BUILD_SHARED_LIBS)
  string(APPEND KVXFER_PC_REQUIRES " ${KVXFER_PC_PRIVATE}")
  set(KVXFER_PC_PRIVATE "")
endif()
# The prefix is found from where the file lies, however deep that is, so that an install can be
# moved; not where a folder was given by an absolute path.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(KVXFER_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(KVXFER_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(dir INCLUDEDIR LIBDIR)
  set(KVXFER_PC_${dir} "\${prefix}")
  cmake_path(APPEND KVXFER_PC_${dir} "${CMAKE_INSTALL_${dir}}")
endforeach()
configure_file(cmake/kvxfer.pc.in ${PROJECT_BINARY_DIR}/kvxfer.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvxfer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET kvxfer_cli)
  install(TARGETS kvxfer_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
