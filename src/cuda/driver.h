// The CUDA driver: libcuda.so.1, loaded at run time, so that one binary runs with and without GPUs.
//
// It is loaded and initialised at the first use of CUDA memory, once in a process and for its life;
// what made that fail then stays the answer. Nothing here changes what is current in a thread of
// the application: each call is made inside of a ContextScope. Contexts are the devices' primary
// ones, as those of the runtime API, of PyTorch and of vLLM are; they are retained, not made anew.
//
// Thread-safety: everything from any thread.

#ifndef KVXFER_CUDA_DRIVER_H_
#define KVXFER_CUDA_DRIVER_H_

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cuda/api.h"

namespace kvxfer::cuda {

class Driver;

// One GPU, or one MIG instance, as CUDA numbers them in this process (CUDA_VISIBLE_DEVICES).
struct Device {
  int ordinal = 0;
  std::string name{};  // "NVIDIA H100 80GB HBM3"
  std::string uuid{};  // 32 hex digits; the same in every process of the host
  std::string pci{};   // "0000:1b:00.0"
  size_t memory = 0;   // bytes
  int compute = 0;     // 90: compute capability 9.0
  int multiprocessors = 0;
  int numa_node = -1;  // of the host; -1: not known
  bool integrated = false;
  bool virtual_memory = false;  // cuMemCreate and what belongs to it
  bool fd_handles = false;      // its memory can be exported as a file descriptor
  bool fabric_handles = false;  // and over NVLink to other hosts
  bool gpu_direct = false;      // NICs may be given its memory
  bool dmabuf = false;          // by way of a dmabuf
  bool stream_values = false;   // streams can wait for a word of memory
  // How far writes of NICs that have completed are ordered before kernels, without a flush
  // (CUGPUDirectRDMAWritesOrdering), and by what a flush can be done (bits).
  int writes_ordering = 0;
  int flush_options = 0;
};

class Driver {
 public:
  // Loads the driver where that has not been tried. Unimplemented: there is none (no libcuda.so.1),
  // or no GPU. Unavailable: there is one, and why it cannot be used: too old, another version than
  // the kernel's module, no permission. Both with the remedy.
  static absl::StatusOr<const Driver*> Get();
  // Null unless the process has initialised CUDA, by Get or otherwise. Loads nothing.
  static const Driver* IfInUse();

  ~Driver();  // never runs for the process's own
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const api::Calls& calls() const { return calls_; }
  int version() const { return version_; }  // 12040: 12.4
  std::span<const Device> devices() const { return devices_; }
  // InvalidArgument names the devices that there are.
  absl::StatusOr<const Device*> device(int ordinal) const;
  // Null: no such device in this process.
  const Device* FindUuid(std::string_view uuid) const;

  // The primary context of a device, retained at the first call.
  absl::StatusOr<api::CUcontext> Context(int ordinal) const;
  // Whether kernels and copies of `from` reach memory of `to`; makes it so at the first call.
  // FailedPrecondition: another GPU without peer-to-peer, and what to look at.
  absl::Status EnablePeerAccess(int from, int to) const;

  // What `result` of `call` means: code, the driver's own name and words, and the remedy where
  // one is known. OK for CUDA_SUCCESS.
  absl::Status Error(api::CUresult result, std::string_view call) const;

 private:
  struct Contexts;
  Driver();
  static absl::StatusOr<std::unique_ptr<Driver>> Load();
  absl::Status FindCalls(void* library);
  absl::Status FindDevices();
  absl::StatusOr<Device> Describe(int ordinal) const;

  api::Calls calls_;
  int version_ = 0;
  std::vector<Device> devices_;
  std::unique_ptr<Contexts> contexts_;
};

// Makes the primary context of a device current in this thread, and what was before again when it
// goes. Where status() is an error nothing was changed.
//
// Calls inside of it leave an application alone that captures a graph at that time, in whichever
// thread: a mere question for an event would spoil it (CU_STREAM_CAPTURE_MODE_GLOBAL).
class ContextScope {
 public:
  ContextScope(const Driver& driver, int ordinal);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  void ExchangeCaptureMode();

  const Driver& driver_;
  absl::Status status_;
  // Of this thread, inside; outside of it while it lives.
  api::CUstreamCaptureMode capture_mode_ = api::CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_DRIVER_H_
