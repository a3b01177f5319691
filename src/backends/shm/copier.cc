#include "src/backends/shm/copier.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "src/backends/shm/regions.h"
#include "src/core/base/strings.h"
#include "src/transport/check_op.h"
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

// The source that is read first when `run`, which may be empty, is copied: a prefetch hint.
std::span<const std::byte> SourceOf(const Run& run, bool write) {
  if (run.bytes == 0 || !KeyOf(run)->mapped()) return {};
  return {write ? LocalAt(run.local) : KeyOf(run)->At(run.remote), static_cast<size_t>(run.bytes)};
}

}  // namespace

Copier::Queued::Queued(const Op& op)
    : kind(op.kind),
      cached(op.blocks.bytes <= kCachedBytes),
      rail(op.rail),
      id(op.id),
      transfer(op.transfer),
      walk(op.blocks) {}

Posted Copier::Post(const Op& op) {
  if (queue_.size() >= kMaxQueuedOps || queued_bytes_ >= kMaxQueuedCopyBytes ||
      events_->size() >= kMaxEvents) {
    return false;
  }
  if (absl::Status good = Check(op); !good.ok()) {
    Complete(op.id, op.rail, std::move(good));
    return true;
  }
  const uint64_t bytes = op.blocks.bytes;
  const bool at_once = queue_.empty() && bytes <= kInlineCopyBytes;
  queue_.emplace_back(op);
  queued_bytes_ += bytes;
  if (!at_once) return true;
  size_t copied = 0;
  std::optional<absl::Status> end = Advance(static_cast<size_t>(bytes), copied);
  StoreBarrier();
  if (!end.has_value()) return true;
  queue_.pop_front();
  if (end->ok()) return Posted::Done();
  Complete(op.id, op.rail, *std::move(end));
  return true;
}

// Checks all runs before any byte moves, so an op that breaks the rules has no partial effect.
// Bounds are enforced on this side: a mapping ends only at page boundaries, and an attached process
// has no bounds at all.
absl::Status Copier::Check(const Op& op) const {
  absl::Status possible = CheckOp(op, {.bytes = kMaxOpBytes, .pieces = kMaxOpPieces}, "shm");
  if (!possible.ok()) return possible;
  const Access wanted = op.kind == OpKind::kWrite ? Access::kRemoteWrite : Access::kRemoteRead;
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
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
  }
  return absl::OkStatus();
}

size_t Copier::Step(size_t budget) {
  size_t copied = 0;
  while (!queue_.empty()) {
    std::optional<absl::Status> end = Advance(budget, copied);
    if (!end.has_value()) break;
    Complete(queue_.front().id, queue_.front().rail, *std::move(end));
    queue_.pop_front();
  }
  // Later stores, which publish the bytes, could otherwise overtake non-temporal ones.
  StoreBarrier();
  return copied;
}

// Goes on with the first op until `copied` has reached `budget`. How it has ended, if it has.
std::optional<absl::Status> Copier::Advance(size_t budget, size_t& copied) {
  Queued& front = queue_.front();
  absl::Status status;
  while (status.ok() && !front.walk.done()) {
    if (copied >= budget) return std::nullopt;
    const absl::StatusOr<size_t> moved = Move(front, budget - copied);
    status = moved.status();
    // It may have moved as much before it failed.
    copied += moved.ok() ? *moved : budget;
  }
  queued_bytes_ -= front.walk.left();
  return status;
}

absl::StatusOr<size_t> Copier::Move(Queued& queued, size_t budget) {
  if (KeyOf(queued.walk.run())->mapped()) return CopyMapped(queued, budget);
  return MoveAttached();
}

size_t Copier::CopyMapped(Queued& queued, size_t budget) {
  RunWalk& walk = queued.walk;
  const bool write = queued.kind == OpKind::kWrite;
  size_t moved = 0;
  while (moved < budget && !walk.done()) {
    const Run& run = walk.run();
    const ShmRemoteKey* key = KeyOf(run);
    if (!key->mapped()) break;
    const auto bytes =
        static_cast<size_t>(std::min<uint64_t>(run.bytes, static_cast<uint64_t>(budget - moved)));
    std::byte* there = key->At(run.remote);
    std::byte* here = LocalAt(run.local);
    if (write) key->Warm(there, bytes);
    if (queued.cached) {
      std::memcpy(write ? there : here, write ? here : there, bytes);
    } else {
      StreamCopy(write ? there : here, write ? here : there, bytes, SourceOf(walk.Ahead(), write));
    }
    moved += bytes;
    walk.Take(bytes);
  }
  queued_bytes_ -= moved;
  return moved;
}

// Fills the batch with attached runs from the front of the queue, across ops of one kind.
void Copier::FillBatch() {
  threads_->Begin(queued_bytes_);
  for (const Queued& queued : queue_) {
    if (queued.kind != queue_.front().kind) return;
    for (RunWalk walk = queued.walk; !walk.done();) {
      const Run& run = walk.run();
      if (KeyOf(run)->mapped()) return;
      const uint64_t taken = threads_->Add(run.local, run.remote, run.bytes);
      if (taken == 0) return;
      walk.Take(taken);
    }
  }
}

absl::StatusOr<size_t> Copier::MoveAttached() {
  if (absl::Status alive = CheckPeer(); !alive.ok()) return alive;
  FillBatch();
  const Queued& front = queue_.front();
  absl::StatusOr<size_t> moved = MoveBatch(front.kind);
  if (absl::IsUnavailable(moved.status())) return Annotate(moved.status(), "shm");
  if (!moved.ok()) {
    const RemoteRegion& region = KeyOf(front.walk.run())->region();
    return Annotate(moved.status(), absl::StrCat("shm: region ", static_cast<uint32_t>(region.id)));
  }
  // May be short: the next call starts at the first byte that was not moved.
  queued_bytes_ -= *moved;
  uint64_t left = *moved;
  for (auto queued = queue_.begin(); left > 0; ++queued) {
    RunWalk& walk = queued->walk;
    while (left > 0 && !walk.done()) {
      const uint64_t step = std::min(left, walk.run().bytes);
      left -= step;
      walk.Take(step);
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
void Copier::Complete(uint64_t id, uint32_t rail, absl::Status status) {
  StoreBarrier();
  events_->Say(EventKind::kCompletion, endpoint_, id, std::move(status), rail);
}

void Copier::Drop(uint64_t transfer, const absl::Status& why) {
  for (const Queued& queued : queue_) {
    if (queued.transfer != transfer) continue;
    queued_bytes_ -= queued.walk.left();
    Complete(queued.id, queued.rail, why);
  }
  std::erase_if(queue_, [transfer](const Queued& q) { return q.transfer == transfer; });
}

void Copier::DropAll(const absl::Status& why) {
  for (const Queued& queued : queue_) Complete(queued.id, queued.rail, why);
  queue_.clear();
  queued_bytes_ = 0;
}

}  // namespace kvxfer::shm
