// A ucp_ep to the worker of one peer, which all endpoints of that peer share. It keeps account of
// the frames that UCX has not sent yet, and watches the peer's process if that is visible here.
//
// Path::Send copies or hands over everything that a frame was built from: that memory is not read
// later, whenever UCX sends the frame.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_UCX_PATH_H_
#define KVXFER_BACKENDS_UCX_PATH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/outgoing.h"
#include "src/backends/ucx/worker.h"
#include "src/core/base/clock.h"
#include "src/core/base/own_fd.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::ucx {

class UcxEndpoint;

class Path final : private net::Watcher {
 public:
  // Limits of frames that UCX has accepted and not completed, and of their bytes: further frames
  // wait in the endpoints.
  static constexpr size_t kWindow = 64;
  static constexpr size_t kWindowBytes = 1024 * 1024;

  // What every path uses; has to outlive the paths.
  struct Parts {
    Worker* worker;
    OutgoingPool* pool;
    net::Reactor* reactor;
  };
  // `place`: see frames.h. `reports_failure`: the setting of the peer's end, if it says so. If it
  // is true, the own end reports too; otherwise the own end reports if it can. Unavailable: UCX
  // finds no transport that reaches the peer.
  static absl::StatusOr<std::unique_ptr<Path>> Open(const Parts& parts, std::string place,
                                                    std::optional<bool> reports_failure);
  // The accepting end of a connection to the listener. Its place is a name that is unique here.
  static absl::StatusOr<std::unique_ptr<Path>> Accept(const Parts& parts,
                                                      ucp_conn_request_h request);
  // Allowed only once closed() is true.
  ~Path() override;

  const std::string& place() const { return place_; }
  bool Is(ucp_ep_h endpoint) const { return endpoint != nullptr && endpoint == ep_; }
  Time made() const { return made_; }
  uint64_t id() const { return id_; }
  // The id of the peer's own path to this backend, as an endpoint says that was authorised or
  // welcomed; 0: not known yet.
  uint64_t peer_id() const { return peer_id_; }
  void set_peer_id(uint64_t id) { peer_id_ = id; }

  // From now on the exit of the process `them` fails the path, if that process is visible from
  // here. Only the first process that is named is watched.
  void WatchProcess(const HostIdentity& them, const HostIdentity& us);

  bool space() const {
    return in_flight_ < kWindow && bytes_in_flight_ < kWindowBytes && !failed();
  }
  // True: too much is in flight even for frames that are sent without asking space().
  bool swamped() const { return in_flight_ >= 4 * kWindow || bytes_in_flight_ >= 4 * kWindowBytes; }
  // To send a frame: Begin, fill it, Send. Callers ask space() first; Send itself takes a frame
  // even if there is no space.
  Outgoing& Begin();
  void Send(const FrameHead& head);

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status why);

  // Closes the endpoint; frames in flight complete in their own time. Through shared memory they
  // never complete if the peer's process no longer takes anything. `flushing`: a flush of the
  // worker is in progress. Then the close is not forced and waits for the peer: UCX (1.22)
  // continues such a flush from a callback of its next progress, in an endpoint that a forced close
  // has freed.
  void Close(bool flushing = false);
  // True: nothing in UCX refers to the path any longer.
  bool closed();
  // True: UCX reports the peer's end, and Close waits for nobody.
  bool reports_failure() const { return reports_failure_; }

  // The transports that UCX uses, e.g. "posix, tcp"; empty while they are not known.
  std::string Lanes() const;
  uint32_t pid() const { return pid_; }  // 0: not known, or not of this host

  std::vector<UcxEndpoint*> endpoints;  // endpoints that use the path, oldest first

 private:
  Path(const Parts& parts, std::string place);
  // `params` says where to connect.
  ucs_status_t Make(ucp_ep_params_t params, ucp_err_handling_mode_t mode);
  ucs_status_t OpenWorker(std::optional<bool> reports_failure);
  ucs_status_t OpenSocket();
  void OnReady(uint32_t events) override;
  void ProcessExited();
  static void OnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* frame);

  Worker* const worker_;
  OutgoingPool* const pool_;
  net::Reactor* const reactor_;
  const uint64_t id_;
  const std::string place_;
  const Time made_ = Now();
  uint64_t peer_id_ = 0;
  ucp_ep_h ep_ = nullptr;
  bool reports_failure_ = false;
  void* closing_ = nullptr;  // the request of Close
  // Frames that UCX has accepted and not completed.
  size_t in_flight_ = 0;
  size_t bytes_in_flight_ = 0;
  absl::Status status_;
  // A pidfd of the peer's process.
  OwnFd process_;
  uint32_t pid_ = 0;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_PATH_H_
