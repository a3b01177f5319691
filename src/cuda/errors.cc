// What a CUDA driver error means for the reader: a status code, the CUDA driver's text, what to do.

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names
using absl::StatusCode;

constexpr char kNoDeviceFiles[] =
    "the device files /dev/nvidia* are not there or may not be opened: in a container start it "
    "with GPUs (--gpus all, or the resource of the device plugin), on a host look at nvidia-smi "
    "and at the rights of /dev/nvidia*";
// After these errors the context is unusable, for the application too.
constexpr char kBroken[] =
    "the GPU context of this process is broken and stays so: restart the process "
    "(compute-sanitizer finds the kernel that did it)";

// The first row that matches applies. `calls` is a prefix of the call's name, for codes whose
// meaning depends on the call.
struct Meaning {
  CUresult result;
  std::string_view calls;
  StatusCode code;
  const char* remedy;
};
constexpr std::array kMeanings = {
    Meaning{CUDA_ERROR_INVALID_VALUE, "", StatusCode::kInvalidArgument,
            "memory that was freed, or is not what it is called?"},
    Meaning{CUDA_ERROR_OUT_OF_MEMORY, "cuMemHostRegister", StatusCode::kResourceExhausted,
            "host memory that may be pinned is used up: raise RLIMIT_MEMLOCK (ulimit -l) or the "
            "memory limit of the container"},
    Meaning{CUDA_ERROR_OUT_OF_MEMORY, "", StatusCode::kResourceExhausted,
            "memory of the GPU is used up (nvidia-smi says by whom)"},
    Meaning{CUDA_ERROR_NOT_INITIALIZED, "", StatusCode::kFailedPrecondition,
            "a forked child cannot use the CUDA of its parent"},
    Meaning{CUDA_ERROR_DEINITIALIZED, "", StatusCode::kFailedPrecondition, "the process is ending"},
    Meaning{CUDA_ERROR_STUB_LIBRARY, "", StatusCode::kUnavailable,
            "the libcuda.so.1 that was found is the toolkit's stub: take lib64/stubs out of "
            "LD_LIBRARY_PATH"},
    Meaning{CUDA_ERROR_DEVICE_UNAVAILABLE, "", StatusCode::kUnavailable,
            "another process has the GPU for itself: nvidia-smi -q -d COMPUTE (exclusive mode), or "
            "use MPS"},
    Meaning{
        CUDA_ERROR_NO_DEVICE, "", StatusCode::kUnimplemented,
        "no GPU is visible: CUDA_VISIBLE_DEVICES; in a container --gpus all, or the resource of "
        "the device plugin"},
    Meaning{CUDA_ERROR_INVALID_DEVICE, "", StatusCode::kInvalidArgument, ""},
    Meaning{CUDA_ERROR_INVALID_IMAGE, "", StatusCode::kUnimplemented, ""},
    Meaning{CUDA_ERROR_INVALID_CONTEXT, "cuIpc", StatusCode::kFailedPrecondition,
            "a handle of this process itself, or of a GPU that is not visible here?"},
    Meaning{CUDA_ERROR_INVALID_CONTEXT, "", StatusCode::kFailedPrecondition,
            "was the device reset (cudaDeviceReset) while its memory was registered?"},
    Meaning{CUDA_ERROR_CONTEXT_IS_DESTROYED, "", StatusCode::kFailedPrecondition,
            "was the device reset (cudaDeviceReset) while its memory was registered?"},
    Meaning{CUDA_ERROR_MAP_FAILED, "", StatusCode::kResourceExhausted,
            "BAR1, the window through which others reach the GPU's memory, is used up (nvidia-smi "
            "-q -d MEMORY): register less, or switch on resizable BAR"},
    Meaning{CUDA_ERROR_ALREADY_MAPPED, "", StatusCode::kFailedPrecondition,
            "something else is mapped in its place: let go of what was opened before"},
    Meaning{CUDA_ERROR_NO_BINARY_FOR_GPU, "", StatusCode::kUnimplemented,
            "the GPU is older than the kernels"},
    Meaning{CUDA_ERROR_INVALID_PTX, "", StatusCode::kUnimplemented, ""},
    Meaning{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "", StatusCode::kUnimplemented,
            "the driver is older than the compiler of the kernels"},
    Meaning{CUDA_ERROR_ECC_UNCORRECTABLE, "", StatusCode::kInternal,
            "the GPU's memory is faulty (nvidia-smi -q -d ECC): reset or replace it"},
    Meaning{CUDA_ERROR_NVLINK_UNCORRECTABLE, "", StatusCode::kInternal,
            "a link between GPUs is faulty (nvidia-smi nvlink -e): reset them"},
    Meaning{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "", StatusCode::kFailedPrecondition,
            "these GPUs have no peer-to-peer path (nvidia-smi topo -p2p r); between MIG instances "
            "there is none, in a virtual machine and with the IOMMU on there may be none"},
    Meaning{CUDA_ERROR_TOO_MANY_PEERS, "", StatusCode::kResourceExhausted,
            "a GPU reaches eight others at a time"},
    Meaning{CUDA_ERROR_OPERATING_SYSTEM, "cuInit", StatusCode::kUnavailable, kNoDeviceFiles},
    Meaning{CUDA_ERROR_OPERATING_SYSTEM, "", StatusCode::kUnavailable,
            "the kernel refused: are /dev/nvidia* there and readable (in a container --gpus all), "
            "and for memory of another process, is its IPC namespace shared (--ipc=host)?"},
    Meaning{CUDA_ERROR_INVALID_HANDLE, "cuEvent", StatusCode::kInvalidArgument, ""},
    Meaning{CUDA_ERROR_INVALID_HANDLE, "cuStream", StatusCode::kInvalidArgument, ""},
    Meaning{CUDA_ERROR_INVALID_HANDLE, "", StatusCode::kFailedPrecondition,
            "its owner is gone, or in another namespace?"},
    Meaning{CUDA_ERROR_ILLEGAL_ADDRESS, "", StatusCode::kInternal, kBroken},
    Meaning{CUDA_ERROR_MISALIGNED_ADDRESS, "", StatusCode::kInternal, kBroken},
    Meaning{CUDA_ERROR_HARDWARE_STACK_ERROR, "", StatusCode::kInternal, kBroken},
    Meaning{CUDA_ERROR_LAUNCH_FAILED, "", StatusCode::kInternal, kBroken},
    Meaning{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "", StatusCode::kAlreadyExists, ""},
    Meaning{CUDA_ERROR_NOT_PERMITTED, "cuInit", StatusCode::kUnavailable, kNoDeviceFiles},
    Meaning{CUDA_ERROR_NOT_PERMITTED, "", StatusCode::kPermissionDenied, ""},
    Meaning{CUDA_ERROR_NOT_SUPPORTED, "", StatusCode::kUnimplemented, ""},
    Meaning{CUDA_ERROR_SYSTEM_NOT_READY, "", StatusCode::kUnavailable,
            "the switches between the GPUs are not set up: start nvidia-fabricmanager, in the "
            "driver's own version"},
    Meaning{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "", StatusCode::kUnavailable,
            "libcuda.so.1 and the kernel module are of different versions: reload the module, or "
            "reboot; start a container anew"},
    Meaning{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "", StatusCode::kUnavailable,
            "the cuda-compat package does not support this GPU: take it out of LD_LIBRARY_PATH and "
            "update the driver instead"},
    Meaning{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "", StatusCode::kInvalidArgument,
            "the legacy default stream is ordered with one that is being captured into a CUDA "
            "graph: take another stream, or do it outside of the capture"},
    Meaning{CUDA_ERROR_UNKNOWN, "cuInit", StatusCode::kUnavailable,
            "is the module nvidia_uvm loaded, and /dev/nvidia-uvm there (nvidia-modprobe -u)?"},
};

const Meaning* Find(CUresult result, std::string_view call) {
  for (const Meaning& meaning : kMeanings) {
    if (meaning.result == result && call.starts_with(meaning.calls)) return &meaning;
  }
  return nullptr;
}

}  // namespace

absl::Status Driver::Error(CUresult result, std::string_view call) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* words = nullptr;
  if (calls_.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (calls_.cuGetErrorString(result, &words) != CUDA_SUCCESS) words = nullptr;
  std::string text = absl::StrCat(ToAbsl(call), ": ", name == nullptr ? "CUDA error" : name, " (",
                                  static_cast<int>(result), words == nullptr ? "" : ", ",
                                  words == nullptr ? "" : words, ")");
  const Meaning* const meaning = Find(result, call);
  if (meaning == nullptr) {
    // An unknown error of cuInit means that CUDA cannot be used here; elsewhere it is unexpected.
    return absl::Status(call == "cuInit" ? StatusCode::kUnavailable : StatusCode::kInternal, text);
  }
  if (meaning->remedy[0] != '\0') absl::StrAppend(&text, ": ", meaning->remedy);
  return absl::Status(meaning->code, text);
}

}  // namespace kvxfer::cuda
