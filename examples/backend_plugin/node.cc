// What agents see of each other: their memory and their events.
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "direct.h"

namespace direct {

using kvxfer::Event;
using kvxfer::EventKind;

namespace {

class Region final : public kvxfer::Registration {
 public:
  Region(std::shared_ptr<Node> node, uint32_t rkey) : node_(std::move(node)), rkey_(rkey) {}
  ~Region() override {
    const std::lock_guard lock(Lock());
    node_->regions.erase(rkey_);
  }

 private:
  const std::shared_ptr<Node> node_;
  const uint32_t rkey_;
};

}  // namespace

Node::Node() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
Node::~Node() { close(fd); }
void Node::Wake() const { eventfd_write(fd, 1); }
void Node::Put(Item item) {
  messages += item.event.kind == EventKind::kMessage ? 1 : 0;
  items.push_back(std::move(item));
  Wake();
}

std::recursive_mutex& Lock() {
  static std::recursive_mutex lock;
  return lock;
}
std::map<std::string, std::weak_ptr<Node>, std::less<>>& Nodes() {
  static auto* const nodes = new std::map<std::string, std::weak_ptr<Node>, std::less<>>;
  return *nodes;
}

void Tell(Link& link, size_t side, Event event, std::string message) {
  event.endpoint = link.ends[side];
  if (event.endpoint == nullptr) return;
  link.nodes[side]->Put({std::move(event), std::move(message)});
}

void Cancel(Link& link, uint64_t transfer) {
  std::erase_if(link.ops, [&](const kvxfer::Op& op) {
    if (transfer != 0 && op.transfer != transfer) return false;
    absl::Status why = absl::CancelledError("not begun");
    Tell(link, 0, {.kind = EventKind::kCompletion, .id = op.id, .status = std::move(why)});
    return true;
  });
}

void Close(Link& link, const absl::Status& why) {
  if (std::exchange(link.down, true)) return;
  Cancel(link, 0);
  for (const size_t side : {size_t{0}, size_t{1}}) {
    Tell(link, side, {.kind = EventKind::kDown, .status = why});
  }
}

std::unique_ptr<kvxfer::Registration> MakeRegion(std::shared_ptr<Node> node,
                                                 const kvxfer::LocalRegion& region) {
  const std::lock_guard lock(Lock());
  node->regions[region.rkey] = region;
  return std::make_unique<Region>(std::move(node), region.rkey);
}

}  // namespace direct
