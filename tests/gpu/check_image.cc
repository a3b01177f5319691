// KVXFER_TEST_FATBIN is the file, where there is nvcc (gpu.cmake).
#include "tests/gpu/check_image.h"

#ifdef KVXFER_TEST_FATBIN
asm(".pushsection .rodata, \"a\", %progbits\n"
    ".balign 64\n"
    "kvxfer_check_image:\n"
    ".globl kvxfer_check_image\n"
    ".incbin \"" KVXFER_TEST_FATBIN
    "\"\n"
    ".popsection\n");
extern "C" const char kvxfer_check_image[];
#endif

namespace kvxfer::testing {

#ifdef KVXFER_TEST_FATBIN
bool HasCheckKernels() { return true; }
const void* CheckKernelImage() { return kvxfer_check_image; }
#else
bool HasCheckKernels() { return false; }
const void* CheckKernelImage() { return "// of the stand-in\n.version 7.0\n"; }
#endif

}  // namespace kvxfer::testing
