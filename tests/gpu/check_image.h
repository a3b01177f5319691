// The compiled check_kernels.cu, for cuModuleLoadData.
#ifndef KVXFER_TESTS_GPU_CHECK_IMAGE_H_
#define KVXFER_TESTS_GPU_CHECK_IMAGE_H_

namespace kvxfer::testing {

// Whether this was built with nvcc. The stand-in driver does without: its kernels are its own.
bool HasCheckKernels();
const void* CheckKernelImage();

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_GPU_CHECK_IMAGE_H_
