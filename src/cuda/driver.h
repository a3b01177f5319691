// The CUDA driver: libcuda.so.1, loaded at run time, so that one binary runs with and without GPUs.
//
// It is loaded and initialised at the first use of CUDA memory, once per process and for its whole
// life. If that fails, every later call returns the same error. Nothing here changes which context
// is current in a thread of the application: each call is made inside a ContextScope. Contexts are
// the devices' primary ones, like those of the runtime API, PyTorch and vLLM; they are retained,
// not created anew.
//
// Thread-safety: everything from any thread.

#ifndef KVXFER_CUDA_DRIVER_H_
#define KVXFER_CUDA_DRIVER_H_

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cuda/api.h"

namespace kvxfer::cuda {

class Driver;

// A GPU or a MIG instance, as CUDA numbers it in this process (CUDA_VISIBLE_DEVICES).
struct Device {
  int ordinal = 0;
  std::string name{};  // "NVIDIA H100 80GB HBM3"
  std::string uuid{};  // 32 hex digits; the same in every process on the host
  std::string pci{};   // "0000:1b:00.0"
  size_t memory = 0;   // bytes
  int compute = 0;     // 90: compute capability 9.0
  int multiprocessors = 0;
  int numa_node = -1;  // of the host; -1: unknown
  bool integrated = false;
  bool virtual_memory = false;  // cuMemCreate and related calls
  bool fd_handles = false;      // its memory can be exported as a file descriptor
  bool fabric_handles = false;  // its memory can be exported over NVLink to other hosts
  bool gpu_direct = false;      // NICs can access its memory (GPUDirect RDMA)
  bool dmabuf = false;          // it can export memory as a dmabuf
  bool stream_values = false;   // CUDA streams can wait for a word of memory
  // Contexts here share the GPU with those of other processes by MPS. Empty: an older
  // driver, which does not say.
  std::optional<bool> mps{};
  // How far completed writes of NICs are ordered before kernels without a flush
  // (CUGPUDirectRDMAWritesOrdering), and how a flush can be done (bits).
  int writes_ordering = 0;
  int flush_options = 0;
};

class Driver {
 public:
  // Loads the CUDA driver if that was not tried before. Unimplemented: there is no driver (no
  // libcuda.so.1) or no GPU. Unavailable: there is a driver that cannot be used: it is too old, its
  // version differs from the kernel module's, or permission is missing. Both errors say what to do.
  static absl::StatusOr<const Driver*> Get();
  // Null unless the process has initialised CUDA, through Get or otherwise. Loads nothing.
  static const Driver* IfInUse();

  ~Driver();  // never runs for the instance that Get returns
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const api::Calls& calls() const { return calls_; }
  int version() const { return version_; }  // 12040: 12.4
  std::span<const Device> devices() const { return devices_; }
  // The InvalidArgument error names the devices that exist.
  absl::StatusOr<const Device*> device(int ordinal) const;
  // Null: no such device in this process.
  const Device* FindUuid(std::string_view uuid) const;

  // The device's primary context, retained at the first call.
  absl::StatusOr<api::CUcontext> Context(int ordinal) const;
  // The device whose primary context `context` is; nothing: it is none that Context has returned.
  // Makes no call of the driver.
  std::optional<int> FindContext(api::CUcontext context) const;
  // OK: kernels and copies on `from` can reach memory of `to`. The first call enables it.
  // FailedPrecondition: the GPUs have no peer-to-peer path; the error says what to look at.
  absl::Status EnablePeerAccess(int from, int to) const;

  // The Status for `result` of `call`: its code, the CUDA driver's name and text for it, and what
  // to do about it if that is known. OK for CUDA_SUCCESS.
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

// Makes a device's primary context current in this thread, and restores the previous one when it is
// destroyed. If status() is an error nothing was changed. If it is current already, as in a thread
// that uses the runtime API, nothing needs to be: a scope costs one call instead of three.
//
// In a thread of kvxfer's own it leaves the context current, so that most scopes make one call. A
// scope within another one of the same device makes none, so a scope around several saves theirs;
// no call back to the application may happen within it.
//
// Calls inside the scope do not disturb an application that is capturing a graph in any thread.
// Without that, even a query of an event would invalidate the capture
// (CU_STREAM_CAPTURE_MODE_GLOBAL). Calls that only put work into streams that are not being
// captured never do; a scope of kQueueing serves for them and costs two calls less.
class ContextScope {
 public:
  enum class For : uint8_t { kAnything, kQueueing };

  ContextScope(const Driver& driver, int ordinal, For what = For::kAnything);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const absl::Status& status() const { return status_; }

  // The calling thread is kvxfer's own. Call it once, at the thread's start.
  static void OwnThread();

 private:
  void Enter();
  void Leave();
  absl::Status MakeCurrent() const;
  void ExchangeCaptureMode();

  const Driver& driver_;
  const For for_;
  api::CUcontext context_ = nullptr;
  absl::Status status_;
  // The scope of this thread that this one lies in; null: none.
  const ContextScope* const outer_;
  // kServed: by `outer_`. Otherwise this one is the innermost.
  enum class Entered : uint8_t { kServed, kOwn, kPushed, kWasCurrent };
  Entered entered_ = Entered::kServed;
  // While the scope exists: the thread's previous mode. Otherwise: the mode to set.
  api::CUstreamCaptureMode capture_mode_ = api::CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_DRIVER_H_
