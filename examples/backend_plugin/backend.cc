// The backend: a node that peers find by its address, its regions and its events.
#include <sys/eventfd.h>

#include <utility>
#include <vector>

#include "direct.h"
#include "kvxfer/plugin.h"

namespace direct {

using kvxfer::Event;
using kvxfer::EventKind;

namespace {

class DirectBackend final : public kvxfer::Backend {
 public:
  explicit DirectBackend(std::string address)
      : info_{.name = "direct",
              .capabilities = {.rail_keeps_order = true,
                               .max_op_bytes = kPollBytes,
                               .max_op_pieces = kMaxPieces,
                               .max_message_bytes = 128 * 1024},
              .address = std::move(address),
              .wait_fd = node_->fd} {
    const std::lock_guard lock(Lock());
    Nodes()[info_.address] = node_;
  }
  ~DirectBackend() override {
    const std::lock_guard lock(Lock());
    Nodes().erase(info_.address);
    std::deque<Item>().swap(node_->items);  // may own endpoints
  }

  const kvxfer::BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const kvxfer::HostIdentity&) const override {
    const std::lock_guard lock(Lock());
    if (Nodes().contains(address) && address != info_.address) return absl::OkStatus();
    return absl::UnavailableError("direct reaches other agents of one process only");
  }
  absl::StatusOr<std::unique_ptr<kvxfer::Endpoint>> Connect(
      std::string_view address, const kvxfer::HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<kvxfer::Registration>> Register(
      const kvxfer::LocalRegion& region) override {
    return MakeRegion(node_, region);
  }
  size_t Poll(std::span<Event> out, kvxfer::Input input) override;
  bool Arm() override {
    const std::lock_guard lock(Lock());
    return node_->items.empty() && !node_->HasOps();
  }

 private:
  const std::shared_ptr<Node> node_ = std::make_shared<Node>();
  const kvxfer::BackendInfo info_;
  std::vector<std::string> messages_;  // of the last Poll
};

absl::StatusOr<std::unique_ptr<kvxfer::Endpoint>> DirectBackend::Connect(
    std::string_view address, const kvxfer::HostIdentity& host) {
  if (absl::Status status = Reachable(address, host); !status.ok()) return status;
  const std::lock_guard lock(Lock());
  const auto it = Nodes().find(address);
  std::shared_ptr<Node> target = it == Nodes().end() ? nullptr : it->second.lock();
  if (target == nullptr) return absl::UnavailableError("that agent is gone");
  auto link = std::make_shared<Link>();
  link->nodes = {node_, target};
  node_->links.push_back(link);
  std::unique_ptr<kvxfer::Endpoint> here = MakeEndpoint(link, 0);
  std::unique_ptr<kvxfer::Endpoint> there = MakeEndpoint(link, 1);
  node_->Put({.event = {.kind = EventKind::kConnected, .endpoint = here.get()}});
  Event accepted{.kind = EventKind::kAccepted, .endpoint = there.get()};
  accepted.accepted = std::move(there);
  target->Put({.event = std::move(accepted)});
  return here;
}

size_t DirectBackend::Poll(std::span<Event> out, kvxfer::Input input) {
  const std::lock_guard lock(Lock());
  eventfd_t count = 0;
  if (input == kvxfer::Input::kAll) eventfd_read(node_->fd, &count);
  node_->Work();
  messages_.clear();
  messages_.reserve(out.size());  // so that none of them moves
  size_t n = 0;
  for (; n < out.size() && !node_->items.empty(); ++n) {
    Item& item = node_->items.front();
    out[n] = std::move(item.event);
    if (out[n].kind == EventKind::kMessage) {
      messages_.push_back(std::move(item.message));
      out[n].message = std::as_bytes(std::span(messages_.back()));
      --node_->messages;
    }
    node_->items.pop_front();
  }
  if (n > 0 && std::exchange(node_->starved, false)) {
    for (auto& [address, node] : Nodes()) {
      if (const auto peer = node.lock()) peer->Wake();
    }
  }
  return n;
}

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> Make(const kvxfer::BackendContext& context) {
  return std::make_unique<DirectBackend>(context.incarnation.ToString());
}

}  // namespace
}  // namespace direct

KVXFER_BACKEND_PLUGIN(direct, direct::Make)
