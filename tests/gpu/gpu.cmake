# Transfers of GPU memory between processes, looked at by kernels: over the stand-in driver here, over
# a real one by scripts/gpu-test on a machine with a GPU, where the program runs as it is.
file(GLOB gpu CONFIGURE_DEPENDS gpu/*.cc)
add_executable(kvxfer_gpu_tests ${gpu} cuda_contract/child.cc cuda_contract/cuda.cc)
target_link_libraries(kvxfer_gpu_tests PRIVATE kvxfer_internal GTest::gmock GTest::gtest)
kvxfer_quick_to_compile(kvxfer_gpu_tests)
add_dependencies(kvxfer_gpu_tests kvxfer_standin_cuda)
if(KVXFER_NVCC AND NOT KVXFER_CUDA_TOOLKIT STREQUAL "OFF")
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/gpu/check_kernels.fatbin)
  kvxfer_cuda_fatbin(${fatbin} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_kernels.cu
    ${CMAKE_CURRENT_SOURCE_DIR}/gpu/check_kernels.cuh ${PROJECT_SOURCE_DIR}/src/cuda/kernels.cuh)
  target_sources(kvxfer_gpu_tests PRIVATE ${fatbin})
  set_source_files_properties(gpu/check_image.cc PROPERTIES OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS "KVXFER_TEST_FATBIN=\"${fatbin}\"" SKIP_PRECOMPILE_HEADERS ON)
endif()

# Transfers use no stream that an application's work would wait for.
kvxfer_entry(gpu.standin ${KVXFER_TEST_TIMEOUT} gpu
  "KVXFER_STANDIN_NO_DEFAULT_STREAM=1" $<TARGET_FILE:kvxfer_gpu_tests> --gtest_filter=-*OneQueue*)
kvxfer_entry(gpu.standin_one_queue ${KVXFER_TEST_TIMEOUT} gpu
  "KVXFER_STANDIN_NO_DEFAULT_STREAM=1;CUDA_DEVICE_MAX_CONNECTIONS=1"
  $<TARGET_FILE:kvxfer_gpu_tests> --gtest_filter=*OneQueue*)
if(KVXFER_SANITIZE)
  return()
endif()

# Where streams cannot wait for words a thread of the driver does; and what takes its time.
kvxfer_entry(gpu.standin_slow ${KVXFER_TEST_TIMEOUT} gpu
  "KVXFER_STANDIN_NO_DEFAULT_STREAM=1;KVXFER_STANDIN_STREAM_VALUES=0;KVXFER_STANDIN_DELAY_US=300"
  $<TARGET_FILE:kvxfer_gpu_tests> --gtest_filter=*StreamOrder*)
# Where the copy kernel cannot be loaded (built without nvcc, or the GPU is older than it is), a call of
# the driver copies each piece. The first module of a process is that of the tests.
set(no_kernel "")
foreach(call RANGE 2 40)
  string(APPEND no_kernel ",cuModuleLoadData:${call}:CUDA_ERROR_NO_BINARY_FOR_GPU")
endforeach()
string(SUBSTRING ${no_kernel} 1 -1 no_kernel)
kvxfer_entry(gpu.standin_no_kernel ${KVXFER_TEST_TIMEOUT} gpu
  "KVXFER_STANDIN_NO_DEFAULT_STREAM=1;KVXFER_STANDIN_FAIL=${no_kernel}"
  $<TARGET_FILE:kvxfer_gpu_tests> --gtest_filter=*GpuBlocks*)

# The suites as they are over a real driver: GPU memory has no alias, so that tests copy it to look at
# it, and cases that ask for a hook of the stand-in are skipped. With few repetitions: the entries of the
# suites have all of them.
foreach(suite conformance fault)
  kvxfer_entry(gpu.no_hooks.${suite} ${KVXFER_TEST_TIMEOUT} gpu
    "KVXFER_STANDIN_NO_DEFAULT_STREAM=1;KVXFER_TEST_NO_HOOKS=1;KVXFER_TEST_QUICK=1"
    $<TARGET_FILE:kvxfer_${suite}_tests> "--gtest_filter=*/CudaIpc-*Soak*")
endforeach()

# Builds with and without nvcc.
add_test(NAME gpu.toolkit COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/toolkit
  ${CMAKE_COMMAND} ${PROJECT_BINARY_DIR} ${CMAKE_CXX_COMPILER})
set_tests_properties(gpu.toolkit PROPERTIES TIMEOUT ${KVXFER_TEST_TIMEOUT} LABELS "gpu;builds"
  SKIP_RETURN_CODE 77)

# How the script judges what was measured.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME gpu.goals
    COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/gpu/goals_test.py)
  set_tests_properties(gpu.goals PROPERTIES TIMEOUT ${KVXFER_TEST_TIMEOUT} LABELS gpu)
endif()

# The script, without what ctest runs by itself; an unknown section; one by itself.
if(TARGET kvxfer_cli)
  add_test(NAME gpu.script_sections
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/gpu/sections ${PROJECT_BINARY_DIR})
  set_tests_properties(gpu.script_sections PROPERTIES TIMEOUT ${KVXFER_TEST_TIMEOUT} LABELS gpu
    ENVIRONMENT "${ucx_environment}")
  add_test(NAME gpu.script
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/gpu-test --stand-in ${PROJECT_BINARY_DIR})
  set_tests_properties(gpu.script PROPERTIES TIMEOUT ${KVXFER_TEST_TIMEOUT} LABELS gpu
    ENVIRONMENT "${ucx_environment}")
endif()
