// One UCX context with one worker: the library's side of a backend. All links of the backend share
// it; what comes in is handed over frame by frame.
//
// Thread-safety: none; used by the backend's owner, which may be another thread each time.

#ifndef KVXFER_BACKENDS_UCX_WORKER_H_
#define KVXFER_BACKENDS_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/ucx/options.h"

namespace kvxfer::ucx {

// Unavailable, "what: text of UCX".
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

// Who hears of what comes in.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Within Worker::Progress; `frame` is valid meanwhile. May send, must not close endpoints.
  // `from`: the endpoint that leads back, of hellos that came by a connection that was accepted;
  // else null.
  virtual void OnFrame(std::span<const std::byte> frame, ucp_ep_h from) = 0;
};

// "UCX 1.13.1 from /usr/lib/libucp.so.0": what was found at run time.
std::string LibraryVersion();
// Unavailable: nothing that this is written for.
absl::Status CheckVersion(unsigned major, unsigned minor);

class Worker {
 public:
  // The active message that carries frames.
  static constexpr unsigned kFrameId = 0x4b;

  // Unavailable names what UCX was told to use and what there is here.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const AgentOptions& agent,
                                                        const UcxOptions& options, FrameSink* sink);
  // Its endpoints are closed. Where UCX cannot be brought to rest the library's objects are left
  // behind, see LeaveBehind.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h get() const { return worker_; }
  const std::string& address() const { return address_; }
  int fd() const { return fd_; }  // readable (epoll) after Arm when there is something to do
  // The datatype of a frame that is sent, see Outgoing::kDatatypeOps.
  ucp_datatype_t frames() const { return frames_; }
  unsigned Progress() { return ucp_worker_progress(worker_); }
  // False: there may be something to do that fd() does not show.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  // What is on its way goes, until flushed(). Once.
  void StartFlush();
  bool flushed();
  // Makes progress until there is nothing that can go on by itself, or for `limit`; which of them.
  // A flush that is not over then waits for a peer.
  bool Settle(Duration limit);
  // Makes progress until `done` or for `limit`; which of them.
  bool ProgressUntil(absl::FunctionRef<bool()> done, Duration limit);
  // The destructor frees nothing. UCX (1.13) aborts the process where a worker is destroyed that
  // owes a connecting peer an answer, or has an endpoint which it could not close; what is left
  // behind is up to a few MiB, of an agent whose peers were connecting, dead or stopped as it
  // ended.
  void LeaveBehind() { leave_behind_ = true; }

  // Nothing but shared memory: up to UCX 1.13 at least such endpoints cannot be asked to report the
  // failure of their peer, and are made without.
  bool memory_only() const { return memory_only_; }

  // "UCX 1.13.1 from /usr/lib/libucp.so.0, transports posix, tcp".
  const std::string& description() const { return description_; }

 private:
  Worker() = default;
  absl::Status MakeContext(const AgentOptions& agent, const UcxOptions& options);
  absl::Status MakeWorker(FrameSink* sink);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int fd_ = -1;
  void* flushing_ = nullptr;  // request of StartFlush
  bool flush_failed_ = false;
  ucp_datatype_t frames_ = 0;  // 0: not made
  bool leave_behind_ = false;
  bool memory_only_ = false;
  std::string description_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_WORKER_H_
