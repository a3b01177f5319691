// What agents see of each other: their memory and their events.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "direct.h"

namespace direct {

using kvxfer::Event;
using kvxfer::EventKind;

namespace {

// All runs are checked at the target before the first byte moves.
absl::Status Check(const kvxfer::Op& op, const Node& target) {
  const auto wanted = op.kind == kvxfer::OpKind::kWrite ? kvxfer::Access::kRemoteWrite
                                                        : kvxfer::Access::kRemoteRead;
  for (const kvxfer::Run& run : op.runs) {
    const auto it = target.regions.find(static_cast<const Key*>(run.key)->rkey);
    if (it == target.regions.end()) return absl::PermissionDeniedError("unknown rkey");
    const kvxfer::LocalRegion& region = it->second;
    const auto base = reinterpret_cast<uint64_t>(region.span.data);
    if (!Allows(region.access, wanted)) return absl::PermissionDeniedError("no such right");
    if (run.remote < base || run.bytes > region.span.bytes ||
        run.remote - base > region.span.bytes - run.bytes) {
      return absl::PermissionDeniedError("out of the region's bounds");
    }
  }
  return absl::OkStatus();
}

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

void Close(Link& link, const absl::Status& why) {
  if (std::exchange(link.down, true)) return;
  for (size_t side : {0, 1}) {
    if (link.ends[side] == nullptr) continue;
    Event down{.kind = EventKind::kDown, .endpoint = link.ends[side], .status = why};
    link.nodes[side]->Put({.event = std::move(down)});
  }
}

absl::Status Copy(const kvxfer::Op& op, const Node& target) {
  if (absl::Status status = Check(op, target); !status.ok()) return status;
  for (const kvxfer::Run& run : op.runs) {
    auto* const local = reinterpret_cast<void*>(run.local);
    auto* const remote = reinterpret_cast<void*>(run.remote);
    const bool write = op.kind == kvxfer::OpKind::kWrite;
    std::memmove(write ? remote : local, write ? local : remote, run.bytes);
  }
  return absl::OkStatus();
}

std::unique_ptr<kvxfer::Registration> MakeRegion(std::shared_ptr<Node> node,
                                                 const kvxfer::LocalRegion& region) {
  const std::lock_guard lock(Lock());
  node->regions[region.rkey] = region;
  return std::make_unique<Region>(std::move(node), region.rkey);
}

}  // namespace direct
