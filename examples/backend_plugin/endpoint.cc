// One side of a connection: copies, and tells both sides.
#include <utility>

#include "direct.h"

namespace direct {
namespace {

using kvxfer::Event;
using kvxfer::EventKind;

uint64_t BytesOf(const kvxfer::Op& op) {
  uint64_t bytes = 0;
  for (const kvxfer::Run& run : op.runs) bytes += run.bytes;
  return bytes;
}

class DirectEndpoint final : public kvxfer::Endpoint {
 public:
  DirectEndpoint(std::shared_ptr<Link> link, int side) : link_(std::move(link)), side_(side) {
    link_->ends[side] = this;
  }
  ~DirectEndpoint() override {
    const std::lock_guard lock(Lock());
    Close(*link_, absl::UnavailableError("the peer let go of the connection"));
    link_->ends[side_] = nullptr;
    std::erase_if(mine().items, [this](const Item& item) { return item.event.endpoint == this; });
  }

  uint32_t rails() const override { return 1; }
  std::string Describe() const override { return "direct copies in this process"; }

  void Authorize() override {
    const std::lock_guard lock(Lock());
    link_->authorized = true;
    other().Wake();
  }
  size_t Post(std::span<const kvxfer::Op> ops) override {
    const std::lock_guard lock(Lock());
    if (link_->down || !link_->authorized || side_ != 0) return 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      bytes += BytesOf(ops[i]);
      if (bytes > kvxfer::kInlineCopyBytes) {
        mine().retry = true;
        return i;
      }
      Run(ops[i]);
    }
    return ops.size();
  }
  bool Send(std::span<const std::byte> message) override {
    const std::lock_guard lock(Lock());
    if (link_->down) return false;
    other().starved = other().messages >= kMaxMessages;
    if (other().starved) return false;
    Tell(1 - side_, {.kind = EventKind::kMessage},
         {reinterpret_cast<const char*>(message.data()), message.size()});
    return true;
  }
  // Nothing is ever under way: what was posted is done, and its immediates are in the queue.
  void Fence(uint64_t transfer) override {
    const std::lock_guard lock(Lock());
    if (!link_->down) Tell(side_, {.kind = EventKind::kFenced, .id = transfer});
  }
  void Shutdown(absl::Status why) override {
    const std::lock_guard lock(Lock());
    Close(*link_, why);
  }
  absl::StatusOr<std::unique_ptr<kvxfer::RemoteKey>> Import(const kvxfer::RemoteRegion& region,
                                                            std::string_view) override {
    return std::make_unique<Key>(region.rkey);
  }

 private:
  Node& mine() { return *link_->nodes[side_]; }
  Node& other() { return *link_->nodes[1 - side_]; }
  void Tell(int side, Event event, std::string message = {}) {
    event.endpoint = link_->ends[side];
    link_->nodes[side]->Put({std::move(event), std::move(message)});
  }
  void Run(const kvxfer::Op& op) {
    absl::Status status = Copy(op, other());
    if (status.ok() && op.has_immediate) {
      Tell(1, {.kind = EventKind::kImmediate, .rail = op.rail, .immediate = op.immediate});
    }
    Tell(0, {.kind = EventKind::kCompletion, .id = op.id, .status = std::move(status)});
  }

  const std::shared_ptr<Link> link_;
  const int side_;
};

}  // namespace

std::unique_ptr<kvxfer::Endpoint> MakeEndpoint(std::shared_ptr<Link> link, int side) {
  return std::make_unique<DirectEndpoint>(std::move(link), side);
}

}  // namespace direct
