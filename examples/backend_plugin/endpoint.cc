// One side of a connection: copies, and tells both sides.
#include <algorithm>
#include <utility>

#include "direct.h"

namespace direct {
namespace {

using kvxfer::Event;
using kvxfer::EventKind;

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
    const size_t space = std::min(ops.size(), kMaxOps - link_->ops.size());
    link_->ops.insert(link_->ops.end(), ops.begin(), ops.begin() + static_cast<ptrdiff_t>(space));
    Advance(*link_, kvxfer::kInlineCopyBytes);
    return space;
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
  void Fence(uint64_t transfer) override {
    const std::lock_guard lock(Lock());
    if (link_->down) return;
    Cancel(*link_, transfer);
    Tell(*link_, side_, {.kind = EventKind::kFenced, .id = transfer});
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
