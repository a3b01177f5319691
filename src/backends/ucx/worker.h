// One UCX context with one worker, which all endpoints of the backend share. It passes on what is
// received frame by frame.
//
// Thread-safety: none; called by the agent's driver only, which may be a different thread each
// time.

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

// OK, or Unavailable with "what: text of UCX".
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

// Receives frames.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Called within Worker::Progress; `frame` is valid until it returns. It may send, but must not
  // close endpoints. `from`: for a hello that came over an accepted connection the endpoint that
  // leads back; null for all other frames.
  virtual void OnFrame(std::span<const std::byte> frame, ucp_ep_h from) = 0;
};

// "UCX 1.13.1 from /usr/lib/libucp.so.0": the library that is loaded.
std::string LibraryVersion();
// Unavailable: this code does not support that version.
absl::Status CheckVersion(unsigned major, unsigned minor);

class Worker {
 public:
  // The active message that carries frames.
  static constexpr unsigned kFrameId = 0x4b;

  // Unavailable: the message names the transports that UCX was asked to use and those that exist
  // here.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const AgentOptions& agent,
                                                        const UcxOptions& options, FrameSink* sink);
  // Its endpoints have to be closed before. After LeaveBehind it does not free the library's
  // objects.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h get() const { return worker_; }
  const std::string& address() const { return address_; }
  int fd() const { return fd_; }  // after Arm: readable (epoll) when there is something to do
  // The datatype of frames that are sent, see Outgoing::kDatatypeOps.
  ucp_datatype_t frames() const { return frames_; }
  unsigned Progress() { return ucp_worker_progress(worker_); }
  // False: there may be work that fd() does not report.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  // Starts a flush: flushed() is true once everything that was sent has left. May be called once.
  void StartFlush();
  bool flushed();
  // Makes progress until nothing is left that can continue by itself (true), or for `limit`
  // (false). A flush that is incomplete after true waits for a peer.
  bool Settle(Duration limit);
  // Makes progress until `done` (true) or for `limit` (false).
  bool ProgressUntil(absl::FunctionRef<bool()> done, Duration limit);
  // Makes the destructor free nothing. UCX (1.13) aborts the process if a worker is destroyed while
  // it owes a connecting peer an answer, or has an endpoint that it could not close. What is left
  // behind is up to a few MiB (over an RDMA device 110), of an agent whose peers were connecting,
  // dead or stopped when it ended.
  void LeaveBehind() { leave_behind_ = true; }

  // True: there is nothing but shared memory. Up to UCX 1.13 at least, such endpoints cannot be
  // asked to report the failure of their peer, so they are made without that.
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
  void* flushing_ = nullptr;  // the request of StartFlush
  bool flush_failed_ = false;
  ucp_datatype_t frames_ = 0;  // 0: not created
  bool leave_behind_ = false;
  bool memory_only_ = false;
  std::string description_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_WORKER_H_
