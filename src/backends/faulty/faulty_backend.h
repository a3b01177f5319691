// The decorating backend. It passes calls on to the inner backend, and the inner backend's events
// through its own endpoints.
//
// Thread-safety: see kvxfer/backend.h. Register uses the inner backend alone.

#ifndef KVXFER_BACKENDS_FAULTY_FAULTY_BACKEND_H_
#define KVXFER_BACKENDS_FAULTY_FAULTY_BACKEND_H_

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "src/backends/faulty/faulty_endpoint.h"
#include "src/backends/faulty/options.h"
#include "src/transport/event_queue.h"

namespace kvxfer::faulty {

class FaultyBackend : public Backend {
 public:
  // Takes ownership of both descriptors. `epoll_fd` watches `inner` and `timer_fd`.
  FaultyBackend(std::unique_ptr<Backend> inner, const FaultOptions& options, uint64_t seed,
                int epoll_fd, int timer_fd);
  ~FaultyBackend() override;
  FaultyBackend(const FaultyBackend&) = delete;
  FaultyBackend& operator=(const FaultyBackend&) = delete;

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override {
    return inner_->Reachable(address, host);
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override {
    return inner_->Register(region);
  }
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // --- for its endpoints ---
  const FaultOptions& options() const { return options_; }
  Random* random() { return &random_; }
  void Report(Pending pending) {
    ready_.Push(std::move(pending.event), std::move(pending.message));
  }
  void Adopt(FaultyEndpoint* endpoint) { endpoints_.push_back(endpoint); }
  void Forget(const FaultyEndpoint* endpoint);

 private:
  void PollInner(Input input);
  // Takes over what the inner backend's Poll may have changed in its description.
  void FollowInner();
  FaultyEndpoint* Find(const Endpoint* inner) const;
  void SetTimer(Time due);

  const std::unique_ptr<Backend> inner_;
  const FaultOptions options_;
  BackendInfo info_;
  const int epoll_fd_;
  const int timer_fd_;
  std::optional<Time> timer_due_;  // when the timer fires
  Random random_;

  std::vector<FaultyEndpoint*> endpoints_;
  std::array<Event, 64> scratch_;
  EventQueue<std::vector<std::byte>> ready_;
};

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_FAULTY_BACKEND_H_
