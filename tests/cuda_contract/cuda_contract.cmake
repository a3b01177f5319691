# What is relied on of the CUDA driver, case by case: over the stand-in here, over a real one by
# scripts/gpu-test on a machine with a GPU. It runs on such a machine as it is: it loads the driver
# itself, and links nothing that belongs to a distribution.
file(GLOB cuda_contract CONFIGURE_DEPENDS cuda_contract/*.cc)
add_executable(kvxfer_cuda_contract_test ${cuda_contract})
target_link_libraries(kvxfer_cuda_contract_test PRIVATE kvxfer_options GTest::gtest)
kvxfer_sanitize_less(kvxfer_cuda_contract_test)
target_compile_options(kvxfer_cuda_contract_test PRIVATE $<$<CONFIG:RelWithDebInfo,Debug>:-O0>)
set_source_files_properties(cuda_contract/cuda.cc PROPERTIES COMPILE_OPTIONS -O2
  SKIP_PRECOMPILE_HEADERS ON)
if(NOT KVXFER_SANITIZE)
  target_link_options(kvxfer_cuda_contract_test PRIVATE -static-libstdc++ -static-libgcc)
endif()
add_dependencies(kvxfer_cuda_contract_test kvxfer_standin_cuda)

# kvxfer_cuda_contract_entry(<name> [<environment>...])
function(kvxfer_cuda_contract_entry name)
  kvxfer_entry(cuda_contract.${name} ${KVXFER_TEST_TIMEOUT} gpu "${ARGN}"
    $<TARGET_FILE:kvxfer_cuda_contract_test>)
endfunction()
kvxfer_cuda_contract_entry(plain)
# With a device that has no peer, and streams that take their time.
kvxfer_cuda_contract_entry(slow "KVXFER_STANDIN_DEVICES=3;KVXFER_STANDIN_DELAY_US=300"
  "KVXFER_STANDIN_FABRIC=1")
