# libfabric's calls without a fabric, and what is promised of them. The fake is a libfabric.so.1 of
# its own in tests/fake_fabric: who has that folder first in LD_LIBRARY_PATH gets it.
pkg_check_modules(LIBFABRIC IMPORTED_TARGET libfabric)
if(NOT LIBFABRIC_FOUND)
  message(STATUS "libfabric is not there: the fake fabric and its tests are left out")
  return()
endif()

file(GLOB fake_fabric CONFIGURE_DEPENDS support/fake_fabric/*.cc)
set(KVXFER_FAKE_FABRIC_DIR ${PROJECT_BINARY_DIR}/tests/fake_fabric)
set(exports ${CMAKE_CURRENT_SOURCE_DIR}/support/fake_fabric/exports.map)
add_library(kvxfer_fake_fabric SHARED ${fake_fabric})
target_compile_features(kvxfer_fake_fabric PRIVATE cxx_std_20)
target_include_directories(kvxfer_fake_fabric PRIVATE ${PROJECT_SOURCE_DIR}
  ${LIBFABRIC_INCLUDE_DIRS})
target_compile_options(kvxfer_fake_fabric PRIVATE -Wall -Wextra -Wconversion)
target_link_libraries(kvxfer_fake_fabric PRIVATE Threads::Threads)
target_link_options(kvxfer_fake_fabric PRIVATE LINKER:--version-script=${exports})
set_target_properties(kvxfer_fake_fabric PROPERTIES OUTPUT_NAME fabric SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${KVXFER_FAKE_FABRIC_DIR} LINK_DEPENDS ${exports})

file(GLOB fabric_tests CONFIGURE_DEPENDS fabric/*.cc)
add_executable(kvxfer_fabric_contract_test ${fabric_tests})
target_link_libraries(kvxfer_fabric_contract_test PRIVATE
  kvxfer_test_support kvxfer_internal GTest::gmock GTest::gtest_main PkgConfig::LIBFABRIC)
kvxfer_quick_to_compile(kvxfer_fabric_contract_test)
add_dependencies(kvxfer_fabric_contract_test kvxfer_fake_fabric)

# kvxfer_fabric_entry(<name> <provider> <seconds> <filter> [<environment>...])
function(kvxfer_fabric_entry name provider seconds filter)
  # libinfinipath writes what it calls a backtrace into the working directory otherwise.
  kvxfer_entry(fabric.${name} ${seconds} fabric
    "KVXFER_FABRIC_PROVIDER=${provider};IPATH_NO_BACKTRACE=1;${ARGN}"
    $<TARGET_FILE:kvxfer_fabric_contract_test> "--gtest_filter=${filter}")
endfunction()

foreach(preset efa efa_direct bare ordered endpoint_keys)
  string(REPLACE efa_direct efa provider ${preset})
  kvxfer_fabric_entry(${preset} ${provider} ${KVXFER_TEST_TIMEOUT} "*"
    "LD_LIBRARY_PATH=${KVXFER_FAKE_FABRIC_DIR}" "FAKE_FABRIC=${preset}")
endforeach()
# A sanitizer sees what the real library does and not what it means by it.
if(NOT KVXFER_SANITIZE)
  # Debian's library takes 0.4 s to look for devices, in each process, and 15 s on a busy machine.
  kvxfer_fabric_entry(tcp_rxm "tcp\\;ofi_rxm" 480 "*Contract.*" "FI_PROVIDER=tcp\\;ofi_rxm")
  # Its peers share locks and mailboxes: who dies, stops or closes in the middle of something hangs
  # or crashes the others.
  kvxfer_fabric_entry(shm shm 480 "*Contract.*-*Killed*:*Stopped*:*AClosedEndpoint*:*MayCloseIn*"
    "FI_PROVIDER=shm")
endif()
