#include "src/backends/shm/copier.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "src/backends/shm/regions.h"
#include "src/core/base/strings.h"
#include "src/transport/host/stream_copy.h"

namespace kvxfer::shm {
namespace {

// Limits of what waits: enough to keep the copier busy between two Polls, little enough that the
// agent can still put other ops first.
constexpr size_t kMaxQueuedOps = 64;
constexpr uint64_t kMaxQueuedCopyBytes = 4 * kMaxOpBytes;
// The most completions that wait to be polled.
constexpr size_t kMaxEvents = 8192;

// Ops of at most this size are copied by ordinary stores, so that the peer, which reads the data at
// once, finds it in a cache. From 2 KiB on, measurements favoured non-temporal stores.
constexpr uint64_t kCachedBytes = 1024;

const ShmRemoteKey* KeyOf(const Run& run) { return static_cast<const ShmRemoteKey*>(run.key); }

std::byte* LocalAt(uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
}

// The source that is read first when `rest` is copied: a prefetch hint.
std::span<const std::byte> NextSource(std::span<const Run> rest, bool write) {
  if (rest.empty()) return {};
  const Run& run = rest.front();
  if (!KeyOf(run)->mapped()) return {};
  return {write ? LocalAt(run.local) : KeyOf(run)->At(run.remote), static_cast<size_t>(run.bytes)};
}

}  // namespace

size_t Copier::Post(std::span<const Op> ops) {
  size_t accepted = 0;
  uint64_t inline_left = kInlineCopyBytes;
  for (const Op& op : ops) {
    if (queue_.size() >= kMaxQueuedOps || queued_bytes_ >= kMaxQueuedCopyBytes ||
        events_->size() >= kMaxEvents) {
      break;
    }
    ++accepted;
    const absl::StatusOr<uint64_t> bytes = Check(op);
    if (!bytes.ok()) {
      Complete(op, bytes.status());
      continue;
    }
    const bool at_once = queue_.empty() && *bytes <= inline_left;
    queue_.push_back({.op = op, .left = *bytes, .cached = *bytes <= kCachedBytes});
    queued_bytes_ += *bytes;
    if (at_once) {
      inline_left -= *bytes;
      Step(*bytes);
    }
  }
  return accepted;
}

// Checks all runs before any byte moves, so an op that breaks the rules has no partial effect.
// Bounds are enforced on this side: a mapping ends only at page boundaries, and an attached process
// has no bounds at all.
absl::StatusOr<uint64_t> Copier::Check(const Op& op) const {
  if (op.runs.size() > kMaxOpRuns) {
    return absl::InvalidArgumentError(absl::StrCat("shm: an op has ", op.runs.size(),
                                                   " runs; at most ", kMaxOpRuns, " are taken"));
  }
  const Access wanted = op.kind == OpKind::kWrite ? Access::kRemoteWrite : Access::kRemoteRead;
  uint64_t bytes = 0;
  for (const Run& run : op.runs) {
    const auto* here = static_cast<const ShmRegistration*>(run.registration);
    const ShmRemoteKey* there = KeyOf(run);
    if (here == nullptr || there == nullptr || there->endpoint() != endpoint_) {
      return absl::InvalidArgumentError(
          "shm: a run without a registration, or with a key of another connection");
    }
    const RemoteRegion& region = there->region();
    if (!here->Contains(run.local, run.bytes) ||
        !Holds(region.base, region.bytes, run.remote, run.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shm: ", run.bytes, " bytes between local 0x", absl::Hex(run.local),
                       " and remote 0x", absl::Hex(run.remote), " leave region ",
                       static_cast<uint32_t>(region.id), " or the local one"));
    }
    if (!Allows(region.access, wanted)) {
      return absl::PermissionDeniedError(
          absl::StrCat("shm: the peer's region ", static_cast<uint32_t>(region.id),
                       " is not registered for this; register it with the right Access there"));
    }
    bytes += run.bytes;
    if (bytes > kMaxOpBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("shm: an op is larger than ", kMaxOpBytes, " bytes"));
    }
  }
  return bytes;
}

size_t Copier::Step(size_t budget) {
  size_t copied = 0;
  while (!queue_.empty()) {
    Queued& front = queue_.front();
    absl::Status status;
    if (front.left > 0) {
      if (copied >= budget) break;
      const absl::StatusOr<size_t> moved = Advance(front, budget - copied);
      status = moved.status();
      if (moved.ok()) {
        copied += *moved;
        if (front.left > 0) continue;
        // It may have moved this much before it failed.
      } else {
        copied += budget;
      }
    }
    queued_bytes_ -= front.left;
    Complete(front.op, std::move(status));
    queue_.pop_front();
  }
  // Later stores, which publish the bytes, could otherwise overtake non-temporal ones.
  StreamFence();
  return copied;
}

absl::StatusOr<size_t> Copier::Advance(Queued& queued, size_t budget) {
  while (queued.op.runs[queued.run].bytes == queued.offset) {
    ++queued.run;
    queued.offset = 0;
  }
  if (KeyOf(queued.op.runs[queued.run])->mapped()) return CopyMapped(queued, budget);
  return MoveAttached();
}

// Counts `bytes` of `queued` as copied.
void Copier::Take(Queued& queued, uint64_t bytes) {
  queued.left -= bytes;
  queued_bytes_ -= bytes;
}

size_t Copier::CopyMapped(Queued& queued, size_t budget) {
  const std::span<const Run> runs = queued.op.runs;
  const bool write = queued.op.kind == OpKind::kWrite;
  size_t moved = 0;
  while (moved < budget && queued.run < runs.size()) {
    const Run& run = runs[queued.run];
    const ShmRemoteKey* key = KeyOf(run);
    if (!key->mapped()) break;
    const auto bytes = static_cast<size_t>(
        std::min<uint64_t>(run.bytes - queued.offset, static_cast<uint64_t>(budget - moved)));
    std::byte* there = key->At(run.remote + queued.offset);
    std::byte* here = LocalAt(run.local + queued.offset);
    if (write && bytes > 0) key->Warm(there, bytes);
    if (queued.cached && bytes > 0) {
      std::memcpy(write ? there : here, write ? here : there, bytes);
    } else {
      StreamCopy(write ? there : here, write ? here : there, bytes,
                 NextSource(runs.subspan(queued.run + 1), write));
    }
    moved += bytes;
    queued.offset += bytes;
    if (queued.offset == run.bytes) {
      ++queued.run;
      queued.offset = 0;
    }
  }
  Take(queued, moved);
  return moved;
}

// Fills the batch with attached runs from the front of the queue, across ops of one kind.
void Copier::FillBatch() {
  threads_->Begin(queued_bytes_);
  for (const Queued& queued : queue_) {
    if (queued.op.kind != queue_.front().op.kind) return;
    uint64_t offset = queued.offset;
    for (const Run& run : queued.op.runs.subspan(queued.run)) {
      if (KeyOf(run)->mapped()) return;
      while (offset < run.bytes) {
        const uint64_t taken =
            threads_->Add(run.local + offset, run.remote + offset, run.bytes - offset);
        if (taken == 0) return;
        offset += taken;
      }
      offset = 0;
    }
  }
}

absl::StatusOr<size_t> Copier::MoveAttached() {
  if (absl::Status alive = CheckPeer(); !alive.ok()) return alive;
  FillBatch();
  const Queued& front = queue_.front();
  absl::StatusOr<size_t> moved = MoveBatch(front.op.kind);
  if (absl::IsUnavailable(moved.status())) return Annotate(moved.status(), "shm");
  if (!moved.ok()) {
    const RemoteRegion& region = KeyOf(front.op.runs[front.run])->region();
    return Annotate(moved.status(), absl::StrCat("shm: region ", static_cast<uint32_t>(region.id)));
  }
  // May be short: the next call starts at the first byte that was not moved.
  uint64_t left = *moved;
  for (auto queued = queue_.begin(); left > 0;) {
    if (queued->left == 0) {
      ++queued;
      continue;
    }
    const uint64_t rest = queued->op.runs[queued->run].bytes - queued->offset;
    const uint64_t step = std::min(left, rest);
    left -= step;
    queued->offset += step;
    Take(*queued, step);
    if (step == rest) {
      ++queued->run;
      queued->offset = 0;
    }
  }
  return moved;
}

// exec() keeps the process id but puts another program's memory at its addresses, and the socket
// does not show it if another process has a copy of it. So the probe word is checked: before a
// write, which must not hit foreign memory; after a read, whose bytes count only if they still were
// the peer's; and after a failure, to find its cause.
absl::StatusOr<size_t> Copier::MoveBatch(OpKind kind) const {
  const uint32_t pid = peer_->pid();
  absl::Status same;
  if (kind == OpKind::kWrite) same = CheckProbe(pid, probe_address_, probe_value_);
  if (!same.ok()) return same;
  absl::StatusOr<size_t> moved = threads_->Move(kind, pid);
  if (kind == OpKind::kRead || !moved.ok()) same = CheckProbe(pid, probe_address_, probe_value_);
  if (!same.ok()) return same;
  return moved;
}

// Called before each batch. The pidfd was tied to pid and start time when the connection began:
// while it shows no exit, the pid belongs to that process. The socket shows that a peer is closing.
absl::Status Copier::CheckPeer() const {
  pollfd fds[2] = {{.fd = peer_->pidfd(), .events = POLLIN, .revents = 0},
                   {.fd = socket_, .events = POLLRDHUP, .revents = 0}};
  if (poll(fds, 2, 0) <= 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("shm: process ", peer_->pid(), fds[0].revents != 0 ? " exited" : " is closing"));
}

// The fence comes before the event: data that the event reports as done must be visible to the
// thread that receives the event.
void Copier::Complete(const Op& op, absl::Status status) {
  StreamFence();
  events_->Say(EventKind::kCompletion, endpoint_, op.id, std::move(status), op.rail);
}

void Copier::Drop(uint64_t transfer, const absl::Status& why) {
  for (const Queued& queued : queue_) {
    if (queued.op.transfer != transfer) continue;
    queued_bytes_ -= queued.left;
    Complete(queued.op, why);
  }
  std::erase_if(queue_, [transfer](const Queued& q) { return q.op.transfer == transfer; });
}

void Copier::DropAll(const absl::Status& why) {
  for (const Queued& queued : queue_) Complete(queued.op, why);
  queue_.clear();
  queued_bytes_ = 0;
}

}  // namespace kvxfer::shm
