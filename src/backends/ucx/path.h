// A UCX endpoint to the worker of one peer, shared by all links with it, and what is under way on
// it: frames that UCX has not taken yet, and the death of the peer's process where that can be
// seen.
//
// Frames are built in staging buffers, so that the source of a write is not read again once its
// last frame is built.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_UCX_PATH_H_
#define KVXFER_BACKENDS_UCX_PATH_H_

#include <array>
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
#include "src/backends/ucx/poller.h"
#include "src/backends/ucx/worker.h"
#include "src/core/own_fd.h"

namespace kvxfer::ucx {

class Link;
class Path;

struct Staging {
  Path* path = nullptr;  // whose frame is in it
  std::array<std::byte, kMaxFrameBytes> bytes;
};

// Staging buffers that are free; grows to what was ever under way at once.
class StagingPool {
 public:
  std::unique_ptr<Staging> Take() {
    if (free_.empty()) return std::make_unique<Staging>();
    std::unique_ptr<Staging> out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  void Give(std::unique_ptr<Staging> staging) { free_.push_back(std::move(staging)); }

 private:
  std::vector<std::unique_ptr<Staging>> free_;
};

class Path final : public Watcher {
 public:
  // Frames that UCX has taken over and not let go of: more wait in the links.
  static constexpr size_t kWindow = 64;

  // `worker`, `pool` and `poller` outlive it. `reports_failure`: what the peer's end does, where it
  // has one; else both are tried. Unavailable: UCX finds no way to that address.
  static absl::StatusOr<std::unique_ptr<Path>> Open(Worker* worker, StagingPool* pool,
                                                    Poller* poller, std::string address,
                                                    std::optional<bool> reports_failure);
  // Only once closed().
  ~Path() override;

  const std::string& address() const { return address_; }
  uint64_t id() const { return id_; }
  // The id of the peer's own path to here; 0: not told yet.
  uint64_t peer_id() const { return peer_id_; }
  void set_peer_id(uint64_t id) { peer_id_ = id; }

  // From now on the end of that process ends the path, where this one can see it. The first to be
  // told is kept.
  void WatchProcess(const HostIdentity& them, const HostIdentity& us);

  bool room() const { return in_flight_ < kWindow && !failed(); }
  // Nor for what does not ask for room.
  bool swamped() const { return in_flight_ >= 4 * kWindow; }
  // A frame: Begin, write behind the head, Send. Send takes what is begun also where there is no
  // room; room() is asked before.
  std::span<std::byte> Begin();
  void Send(FrameHead head);

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status why);

  // Gives the endpoint up; what is under way ends, in its own time. Through shared memory to a
  // process that takes nothing any more that is never.
  void Close();
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
  Path(Worker* worker, StagingPool* pool, Poller* poller, std::string address);
  ucs_status_t Make(ucp_err_handling_mode_t mode);
  static void OnError(void* arg, ucp_ep_h ep, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* staging);

  Worker* const worker_;
  StagingPool* const pool_;
  Poller* const poller_;
  const std::string address_;
  const uint64_t id_;
  uint64_t peer_id_ = 0;
  ucp_ep_h ep_ = nullptr;
  bool reports_failure_ = false;
  void* closing_ = nullptr;  // request of Close
  std::unique_ptr<Staging> begun_;
  size_t in_flight_ = 0;
  absl::Status status_;
  OwnFd process_;
  uint32_t pid_ = 0;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_PATH_H_
