// What moves the bytes: ops of connections, in the order of posting.
#include <algorithm>
#include <cstring>
#include <utility>

#include "direct.h"

namespace direct {
namespace {

using kvxfer::EventKind;

// All runs are checked at the target before the first byte moves.
absl::Status Check(const kvxfer::Op& op, const Node& target) {
  const auto wanted = op.kind == kvxfer::OpKind::kWrite ? kvxfer::Access::kRemoteWrite
                                                        : kvxfer::Access::kRemoteRead;
  for (kvxfer::RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const kvxfer::Run& run = walk.run();
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

absl::Status Copy(const kvxfer::Op& op, const Link& link) {
  if (std::ranges::find(link.fenced, op.transfer) != link.fenced.end()) {
    return absl::CancelledError("the target has fenced the transfer");
  }
  if (absl::Status status = Check(op, *link.nodes[1]); !status.ok()) return status;
  for (kvxfer::RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const kvxfer::Run& run = walk.run();
    auto* const local = reinterpret_cast<void*>(run.local);
    auto* const remote = reinterpret_cast<void*>(run.remote);
    const bool write = op.kind == kvxfer::OpKind::kWrite;
    std::memmove(write ? remote : local, write ? local : remote, run.bytes);
  }
  return absl::OkStatus();
}

}  // namespace

bool Node::HasOps() const {
  return std::ranges::any_of(links, [](const auto& held) {
    const auto link = held.lock();
    return link != nullptr && !link->ops.empty();
  });
}

void Node::Work() {
  std::erase_if(links, [](const auto& held) { return held.expired(); });
  uint64_t left = kPollBytes;
  for (const auto& held : links) {
    if (const auto link = held.lock()) left -= Advance(*link, left);
  }
  // Another one is the first next time.
  if (!links.empty()) std::rotate(links.begin(), links.begin() + 1, links.end());
}

uint64_t Advance(Link& link, uint64_t bytes) {
  uint64_t copied = 0;
  while (!link.ops.empty() && copied + link.ops.front().blocks.bytes <= bytes) {
    const kvxfer::Op op = link.ops.front();
    link.ops.pop_front();
    copied += op.blocks.bytes;
    absl::Status status = Copy(op, link);
    if (status.ok() && op.has_immediate) {
      Tell(link, 1, {.kind = EventKind::kImmediate, .rail = op.rail, .immediate = op.immediate});
    }
    Tell(link, 0, {.kind = EventKind::kCompletion, .id = op.id, .status = std::move(status)});
  }
  return copied;
}

}  // namespace direct
