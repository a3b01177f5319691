// KVXFER_CUDA_FATBIN is the path of the compiled kernels (cmake/CudaKernels.cmake). Without it the
// image is empty.

#include "src/cuda/copy_kernel.h"

#ifdef KVXFER_CUDA_FATBIN
// In a read-only section; the symbols are not visible outside of the library.
asm(".pushsection .rodata, \"a\", %progbits\n"
    ".balign 64\n"
    ".hidden kvxfer_cuda_image_begin\n"
    ".globl kvxfer_cuda_image_begin\n"
    "kvxfer_cuda_image_begin:\n"
    ".incbin \"" KVXFER_CUDA_FATBIN
    "\"\n"
    ".hidden kvxfer_cuda_image_end\n"
    ".globl kvxfer_cuda_image_end\n"
    "kvxfer_cuda_image_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" {
extern const std::byte kvxfer_cuda_image_begin[] __attribute__((visibility("hidden")));
extern const std::byte kvxfer_cuda_image_end[] __attribute__((visibility("hidden")));
}
#endif

namespace kvxfer::cuda {

std::span<const std::byte> CopyKernelImage() {
#ifdef KVXFER_CUDA_FATBIN
  return {kvxfer_cuda_image_begin, kvxfer_cuda_image_end};
#else
  return {};
#endif
}

}  // namespace kvxfer::cuda
