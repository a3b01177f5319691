// One side of a connection: copies, and tells both sides.
#include <utility>
#include <vector>

#include "direct.h"

namespace direct {
namespace {

using kvxfer::Event;
using kvxfer::EventKind;

// What can never be done is taken all the same, and ends with an error.
absl::Status CheckOp(const kvxfer::Op& op, size_t side) {
  if (side != 0) return absl::FailedPreconditionError("only the side that connected posts");
  if (op.rail == 0 && op.transfer != 0 && op.blocks.bytes <= kPollBytes &&
      op.blocks.pieces <= kMaxPieces) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("an op beyond the limits, or of no rail or transfer");
}

class DirectEndpoint final : public kvxfer::Endpoint {
 public:
  DirectEndpoint(std::shared_ptr<Link> link, size_t side) : link_(std::move(link)), side_(side) {
    link_->ends[side] = this;
  }
  ~DirectEndpoint() override {
    const std::lock_guard lock(Lock());
    Close(*link_, absl::UnavailableError("the peer let go of the connection"));
    link_->ends[side_] = nullptr;
    std::erase_if(mine().items, [this](const Item& item) { return item.event.endpoint == this; });
  }

  kvxfer::EndpointInfo Describe() const override {
    return {.path = "direct copies in this process", .rails = std::vector<kvxfer::RailInfo>(1)};
  }

  void Authorize() override {
    const std::lock_guard lock(Lock());
    link_->authorized = true;
    other().Wake();
  }
  kvxfer::Posted Post(const kvxfer::Op& op) override {
    const std::lock_guard lock(Lock());
    if (link_->down) return false;
    if (const absl::Status possible = CheckOp(op, side_); !possible.ok()) {
      Tell(*link_, side_, {.kind = EventKind::kCompletion, .id = op.id, .status = possible});
      return true;
    }
    if (!link_->authorized || link_->ops.size() >= kMaxOps) return false;
    link_->ops.push_back(op);  // Poll copies, so what waits here is bounded
    return true;
  }
  bool Send(std::span<const std::byte> message) override {
    const std::lock_guard lock(Lock());
    if (link_->down) return false;
    other().starved = other().messages >= kMaxMessages;
    if (other().starved) return false;
    Tell(*link_, 1 - side_, {.kind = EventKind::kMessage},
         {reinterpret_cast<const char*>(message.data()), message.size()});
    return true;
  }
  // A copy is never under way while somebody else has the lock; its immediates are in the queue.
  // The rail is never fenced by itself, because it does not fail alone.
  void Fence(kvxfer::FenceScope scope) override {
    const std::lock_guard lock(Lock());
    if (link_->down) return;
    Cancel(*link_, scope.transfer);
    if (side_ == 1) link_->fenced.push_back(scope.transfer);
    if (link_->fenced.size() > kMaxFenced) link_->fenced.pop_front();
    Tell(*link_, side_, {.kind = EventKind::kFenced, .id = scope.transfer, .rail = scope.rail});
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

  const std::shared_ptr<Link> link_;
  const size_t side_;
};

}  // namespace

std::unique_ptr<kvxfer::Endpoint> MakeEndpoint(std::shared_ptr<Link> link, size_t side) {
  return std::make_unique<DirectEndpoint>(std::move(link), side);
}

}  // namespace direct
