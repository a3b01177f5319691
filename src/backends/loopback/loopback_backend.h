// The loopback backend of one agent: its node, its endpoints, and the events that are not reported
// yet.
//
// Thread-safety: see kvxfer/backend.h. Register uses the node alone, which any thread may use.

#ifndef KVXFER_BACKENDS_LOOPBACK_LOOPBACK_BACKEND_H_
#define KVXFER_BACKENDS_LOOPBACK_LOOPBACK_BACKEND_H_

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/backends/loopback/endpoint.h"
#include "src/backends/loopback/node.h"
#include "src/transport/event_queue.h"

namespace kvxfer::loopback {

inline constexpr size_t kMaxMessageBytes = 256 * 1024;

class LoopbackBackend : public Backend {
 public:
  // `rails`: for each connection that is made here.
  LoopbackBackend(std::shared_ptr<Node> node, HostIdentity host, uint32_t rails);
  // Closes the endpoints that are left and the connections that were not accepted yet.
  ~LoopbackBackend() override;

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // Queues an event for the next Poll.
  void Report(Event event, std::vector<std::byte> message = {}) {
    ready_.Push(std::move(event), std::move(message));
  }
  // `endpoint` has an op queued.
  void OnQueued(LoopbackEndpoint& endpoint) {
    if (!std::exchange(endpoint.listed, true)) working_.push_back(&endpoint);
  }
  // `endpoint` is being destroyed.
  void Forget(const LoopbackEndpoint& endpoint);

 private:
  void TakeMail(size_t max);
  void OnMail(Mail& mail);
  void Accept(const std::shared_ptr<Connection>& connection);
  void Add(LoopbackEndpoint& endpoint);
  void Remove(const LoopbackEndpoint& endpoint);
  LoopbackEndpoint* FindEndpoint(const Connection* connection, Side side) const;
  void CopySome();

  const std::shared_ptr<Node> node_;
  const HostIdentity host_;
  const uint32_t rails_;
  const BackendInfo info_;
  // Of both sides of a connection, what is here and not down yet; null: nothing.
  using Sides = std::array<LoopbackEndpoint*, 2>;
  std::unordered_map<const Connection*, Sides> endpoints_;
  std::deque<LoopbackEndpoint*>
      working_;             // those with queued ops, whose copies come first in front
  std::vector<Mail> mail_;  // scratch space for TakeMail
  EventQueue<std::vector<std::byte>> ready_;
};

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_LOOPBACK_BACKEND_H_
