// A UCX endpoint to the worker of one peer, shared by all links with it, and what is under way on
// it: frames that UCX has not taken yet, and the death of the peer's process where that can be
// seen.
//
// What a frame is built of is not read again once it is sent, whenever UCX sends it.
//
// Thread-safety: none; used by the backend's owner.

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
#include "src/backends/ucx/poller.h"
#include "src/backends/ucx/worker.h"
#include "src/core/base/clock.h"
#include "src/core/base/own_fd.h"

namespace kvxfer::ucx {

class Link;

class Path final : public Watcher {
 public:
  // Frames that UCX has taken over and not let go of, and their bytes: more wait in the links.
  static constexpr size_t kWindow = 64;
  static constexpr size_t kWindowBytes = 1024 * 1024;

  // What paths are made of; outlives them.
  struct Parts {
    Worker* worker;
    OutgoingPool* pool;
    Poller* poller;
  };
  // `place`: of frames.h. `reports_failure`: what the peer's end does, where it has one; else both
  // are tried. Unavailable: UCX finds no way there.
  static absl::StatusOr<std::unique_ptr<Path>> Open(const Parts& parts, std::string place,
                                                    std::optional<bool> reports_failure);
  // The other end of one that was opened to a listener; its place is a name that nothing else has.
  static absl::StatusOr<std::unique_ptr<Path>> Accept(const Parts& parts,
                                                      ucp_conn_request_h request);
  // Only once closed().
  ~Path() override;

  const std::string& place() const { return place_; }
  bool Is(ucp_ep_h endpoint) const { return endpoint != nullptr && endpoint == ep_; }
  Time made() const { return made_; }
  uint64_t id() const { return id_; }
  // The id of the peer's own path to here; 0: not told yet.
  uint64_t peer_id() const { return peer_id_; }
  void set_peer_id(uint64_t id) { peer_id_ = id; }

  // From now on the end of that process ends the path, where this one can see it. The first to be
  // told is kept.
  void WatchProcess(const HostIdentity& them, const HostIdentity& us);

  bool room() const { return in_flight_ < kWindow && bytes_in_flight_ < kWindowBytes && !failed(); }
  // Nor for what does not ask for room.
  bool swamped() const { return in_flight_ >= 4 * kWindow || bytes_in_flight_ >= 4 * kWindowBytes; }
  // A frame: Begin, fill it, Send. Send takes what is begun also where there is no room; room() is
  // asked before.
  Outgoing& Begin();
  void Send(const FrameHead& head);

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status why);

  // Gives the endpoint up; what is under way ends, in its own time. Through shared memory to a
  // process that takes nothing any more that is never. While a flush of the worker is `flushing`
  // on, it is not forced, and waits for the peer: UCX (1.22) goes on with such a flush by a
  // callback of its next progress, in an endpoint that a forced close has freed.
  void Close(bool flushing = false);
  // Nothing of UCX names it any more.
  bool closed();
  // UCX tells of the peer's end, and Close waits for nobody.
  bool reports_failure() const { return reports_failure_; }

  // What UCX goes over, e.g. "posix, tcp"; empty while it is not known.
  std::string Lanes() const;
  uint32_t pid() const { return pid_; }  // 0: not known, or not of this host

  void OnReady() override;

  std::vector<Link*> links;  // that use it

 private:
  Path(const Parts& parts, std::string place);
  // `params`: where to.
  ucs_status_t Make(ucp_ep_params_t params, ucp_err_handling_mode_t mode);
  ucs_status_t OpenWorker(std::optional<bool> reports_failure);
  ucs_status_t OpenSocket();
  static void OnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* frame);

  Worker* const worker_;
  OutgoingPool* const pool_;
  Poller* const poller_;
  const uint64_t id_;
  const std::string place_;
  const Time made_ = Now();
  uint64_t peer_id_ = 0;
  ucp_ep_h ep_ = nullptr;
  bool reports_failure_ = false;
  void* closing_ = nullptr;  // request of Close
  size_t in_flight_ = 0;
  size_t bytes_in_flight_ = 0;
  absl::Status status_;
  OwnFd process_;
  uint32_t pid_ = 0;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_PATH_H_
