# libfabric's calls without a fabric, and what is promised of them. The fake is a libfabric.so.1 of
# its own in tests/fake_fabric: who has that folder first in LD_LIBRARY_PATH gets it.
if(NOT TARGET PkgConfig::LIBFABRIC)
  message(STATUS "libfabric is not there: the fake fabric and its tests are left out")
  return()
endif()

file(GLOB fake_fabric CONFIGURE_DEPENDS support/fake_fabric/*.cc)
set(KVXFER_FAKE_FABRIC_DIR ${PROJECT_BINARY_DIR}/tests/fake_fabric)
set(exports ${CMAKE_CURRENT_SOURCE_DIR}/support/fake_fabric/exports.map)
add_library(kvxfer_fake_fabric SHARED ${fake_fabric})
target_compile_features(kvxfer_fake_fabric PRIVATE cxx_std_20)
target_include_directories(kvxfer_fake_fabric PRIVATE ${PROJECT_SOURCE_DIR}
  $<TARGET_PROPERTY:PkgConfig::LIBFABRIC,INTERFACE_INCLUDE_DIRECTORIES>)
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
  kvxfer_entry(fabric.${name} ${seconds} "fabric;more"
    "KVXFER_FABRIC_PROVIDER=${provider};IPATH_NO_BACKTRACE=1;${ARGN}"
    $<TARGET_FILE:kvxfer_fabric_contract_test> "--gtest_filter=${filter}")
endfunction()

foreach(preset efa efa_direct bare ordered endpoint_keys)
  string(REPLACE efa_direct efa provider ${preset})
  kvxfer_fabric_entry(${preset} ${provider} ${KVXFER_TEST_TIMEOUT} "*"
    "LD_LIBRARY_PATH=${KVXFER_FAKE_FABRIC_DIR}:${KVXFER_STANDIN_CUDA_DIR}" "FAKE_FABRIC=${preset}")
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

if(NOT TARGET kvxfer_backend_libfabric)
  return()
endif()

# kvxfer_libfabric_entry(<name> <suite> <provider> <seconds> <filter> [<environment>...]): cases of a
# suite over the backend libfabric.
function(kvxfer_libfabric_entry name suite provider seconds filter)
  kvxfer_entry(libfabric.${name} ${seconds} libfabric
    "KVXFER_FABRIC_PROVIDER=${provider};IPATH_NO_BACKTRACE=1;${ARGN}"
    $<TARGET_FILE:kvxfer_${suite}_tests> "--gtest_filter=${filter}")
endfunction()

# kvxfer_fake_libfabric_entry(<name> <suite> <provider> <seconds> <filter> <settings of the fake>
# [<environment>...])
function(kvxfer_fake_libfabric_entry name suite provider seconds filter fake)
  kvxfer_libfabric_entry(${name} ${suite} ${provider} ${seconds} ${filter}
    "LD_LIBRARY_PATH=${KVXFER_FAKE_FABRIC_DIR}:${KVXFER_STANDIN_CUDA_DIR}" "FAKE_FABRIC=${fake}" ${ARGN})
endfunction()

# Over efa with two rails everything, over the others the suite of the backend interface and transfers
# of agents; where ops fail at random, what can bear that.
set(backend "*Backend*Libfabric*:*Refusal*Libfabric*")
set(agents "*Agent*Libfabric*:*PeersTransfer*Libfabric*")
set(plain "*Backend*/Libfabric:*Refusal*/Libfabric:*AgentTransfer*/Libfabric:*AgentQuiet*/Libfabric")
set(efa "efa,api_minor=18,devices=2,behind=0.1")
set(two_domains "KVXFER_FABRIC_DOMAINS=rdmap0s0-rdm,rdmap0s1-rdm")
set(limit 480)  # under a sanitizer on a busy machine
kvxfer_fake_libfabric_entry(efa_backend conformance efa ${limit}
  "${backend}:*LibfabricFake*:*LibfabricScale*-*Soak*" "${efa}" ${two_domains})
kvxfer_fake_libfabric_entry(efa_soak conformance efa 600 "*Libfabric*Soak*" "${efa}" ${two_domains})
set_tests_properties(libfabric.efa_soak PROPERTIES LABELS nightly)
kvxfer_fake_libfabric_entry(efa_agents conformance efa ${limit} "${agents}-*Soak*" "${efa}"
  ${two_domains})
kvxfer_fake_libfabric_entry(efa_fault fault efa ${limit} "*Libfabric*-*Soak*" "${efa}" ${two_domains})
kvxfer_fake_libfabric_entry(efa_storm conformance efa ${limit}
  "Failing/*:*AgentOrder*/Libfabric:*AgentNotification*/Libfabric-*Soak*"
  "${efa},behind=0,eagain=0.2,errors=0.01" ${two_domains})
kvxfer_fake_libfabric_entry(efa_storm_cancel fault efa ${limit} "*Cancel*/Libfabric-*Soak*"
  "${efa},behind=0,eagain=0.1,errors=0.003,late=20000" ${two_domains})
kvxfer_fake_libfabric_entry(efa_direct conformance efa ${limit} "${plain}"
  "efa_direct,api_minor=18")
# GPU memory, that of the stand-in driver, which the fake's devices reach within one process.
kvxfer_fake_libfabric_entry(efa_cuda conformance efa ${limit}
  "*Backend*/Libfabric:*AgentTransfer*/Libfabric:*LibfabricGpu*-*Soak*:Faulty*"
  "efa,api_minor=18,hmem=1,behind=0.1" "KVXFER_FABRIC_MEMORY=cuda")
kvxfer_fake_libfabric_entry(bare conformance bare ${limit} "${plain}" "bare")
kvxfer_fake_libfabric_entry(ordered conformance ordered ${limit} "${plain}" "ordered")
set_tests_properties(libfabric.efa_direct libfabric.bare libfabric.ordered PROPERTIES LABELS nightly)
if(KVXFER_SANITIZE MATCHES "address")
  # In CI the build without a sanitizer runs them, over the same stand-in.
  set_tests_properties(libfabric.efa_agents PROPERTIES LABELS nightly)
endif()
# A sanitizer sees what the real library does and not what it means by it.
if(NOT KVXFER_SANITIZE)
  # The net of 1.17 takes no lock for its table of registrations: one that is made while data moves
  # makes a write fail now and then (src/backends/README.md).
  kvxfer_libfabric_entry(net_backend conformance net ${limit}
    "${backend}:*LibfabricNet*-*Soak*:*RegionsComeAndGo*")
  kvxfer_libfabric_entry(net_agents conformance net ${limit} "${agents}-*Soak*:*AgentSession.Re*")
  kvxfer_libfabric_entry(net_fault fault net ${limit} "*Libfabric*-*Soak*")
  kvxfer_libfabric_entry(net_idle resources net ${limit} "*IdlePeers*Libfabric*")
  # The net of 1.17 can crash where an endpoint is closed in the middle of large writes, as a peer
  # that is removed or killed does (src/backends/README.md).
  set_tests_properties(libfabric.net_agents libfabric.net_fault PROPERTIES LABELS nightly)
  set_tests_properties(libfabric.net_backend PROPERTIES LABELS "libfabric;more")
endif()
