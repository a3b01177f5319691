// LibfabricDialledEndpoint: posting ops, completions, and making transfers quiet.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/dialled.h"
#include "src/backends/libfabric/regions.h"
#include "src/transport/check_op.h"

namespace kvxfer::libfabric {
namespace {

// How long the endpoint stays busy for an op that found no space and has not been posted again.
constexpr Duration kSpaceTimeout = std::chrono::milliseconds(10);
// How many failed ops are remembered; each has cost a rail.
constexpr size_t kMaxCulprits = 64;
// Limit of bytes that wait on the control stream: above it, ops whose immediate has to go there are
// not accepted.
constexpr size_t kMaxToTell = 64 * 1024;

}  // namespace

// The blocks of an op, as libfabric takes them.
struct LibfabricDialledEndpoint::Pieces {
  std::array<iovec, kMaxPieces> local;
  std::array<void*, kMaxPieces> descs;
  std::array<fi_rma_iov, kMaxPieces> remote;
  size_t count = 0;
  uint64_t begin = 0;   // the peer's address of the first byte
  bool of_gpu = false;  // some of the local bytes are in GPU memory
};

bool LibfabricDialledEndpoint::Gather(const Op& op, Pieces& out) {
  RunWalk walk(op.blocks);
  out.begin = walk.run().remote;
  for (; !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    const auto* const registration = static_cast<const LibfabricRegistration*>(run.registration);
    const auto* const key = static_cast<const LibfabricRemoteKey*>(run.key);
    if (registration == nullptr || key == nullptr || !key->has(op.rail)) return false;
    out.of_gpu = out.of_gpu || registration->gpu() != nullptr;
    const size_t i = out.count++;
    out.local[i] = {.iov_base = reinterpret_cast<void*>(run.local), .iov_len = run.bytes};
    out.descs[i] = registration->desc(op.rail);
    out.remote[i] = {
        .addr = key->Place(op.rail, run.remote), .len = run.bytes, .key = key->key(op.rail)};
  }
  return true;
}

absl::Status LibfabricDialledEndpoint::CheckOp(const Op& op, Pieces& pieces) const {
  const Capabilities& most = backend_->capabilities();
  const OpLimits limits{
      .rails = rails_.size(), .bytes = most.max_op_bytes, .pieces = most.max_op_pieces};
  absl::Status status = kvxfer::CheckOp(op, limits, "libfabric");
  if (!status.ok() || Gather(op, pieces)) return status;
  return absl::InvalidArgumentError(absl::StrCat("libfabric: op ", op.id, " lacks a key"));
}

Posted LibfabricDialledEndpoint::Post(const Op& op) {
  if (!up()) return false;
  Pieces pieces;
  const absl::Status checked = CheckOp(op, pieces);
  const Flight flight{.op = op.id, .transfer = op.transfer, .remote = pieces.begin};
  // Accepted all the same: an op that can never be posted has to complete, with an error.
  if (!checked.ok()) {
    OpDone(op.rail, flight, checked);
    return true;
  }
  if (!rails_[op.rail].life.up()) return false;
  absl::StatusOr<bool> posted = PostOp(op, pieces, flight);
  BeBusy();
  if (posted.ok() && !*posted) {
    busy_until_ = Now() + kSpaceTimeout;
    return false;
  }
  busy_until_ = {};
  if (posted.ok()) return true;
  // The op counts as accepted, so FailRail has to complete it too.
  const Done failed{.flight = flight, .status = posted.status(), .maybe_op = true};
  FailRail(op.rail, posted.status(), std::span(&failed, 1));
  return true;
}

absl::StatusOr<bool> LibfabricDialledEndpoint::PostOp(const Op& op, Pieces& pieces,
                                                      const Flight& flight) {
  DialledRail& rail = rails_[op.rail];
  const size_t count = pieces.count;
  const auto immediate = op.has_immediate ? std::optional(op.immediate) : std::nullopt;
  const bool read = op.kind == OpKind::kRead;
  // Nothing to move and nothing to report.
  if (count == 0 && (read || !immediate)) {
    OpDone(op.rail, flight, absl::OkStatus());
    return true;
  }
  // A write of no bytes still has to carry the immediate.
  if (count == 0) return PostNothing(rail, immediate, flight);
  End::Request request{.read = read,
                       .local = std::span(pieces.local).first(count),
                       .descs = std::span(pieces.descs).first(count),
                       .remote = std::span(pieces.remote).first(count),
                       .flight = flight};
  request.flight.into_gpu = read && pieces.of_gpu;
  return read ? rail.end->Post(request) : PostWrite(rail, request, immediate);
}

absl::StatusOr<bool> LibfabricDialledEndpoint::PostWrite(DialledRail& rail, End::Request request,
                                                         std::optional<uint32_t> immediate) {
  const bool carried = immediate && rail.end->domain().carries_immediates();
  // Waits while the target's completion queue may be full, or while immediates from before a fence
  // have not arrived (FenceDone).
  if (carried && (rail.sent - rail.heard >= kMaxUnheard ||
                  static_cast<int32_t>(rail.held_until - rail.heard) > 0)) {
    return false;
  }
  if (immediate && !carried && unsent() >= kMaxToTell) return false;
  (carried ? request.immediate : request.flight.to_tell) = immediate;
  absl::StatusOr<bool> posted = rail.end->Post(request);
  if (carried && posted.ok() && *posted) ++rail.sent;
  return posted;
}

absl::StatusOr<bool> LibfabricDialledEndpoint::PostNothing(DialledRail& rail,
                                                           std::optional<uint32_t> immediate,
                                                           const Flight& flight) {
  const Domain& domain = rail.end->domain();
  const iovec local{.iov_base = const_cast<void*>(domain.nothing()), .iov_len = Domain::kNothing};
  void* desc = domain.nothing_desc();
  const fi_rma_iov remote{.addr = rail.sink, .len = Domain::kNothing, .key = rail.sink_key};
  return PostWrite(rail,
                   {.local = std::span(&local, 1),
                    .descs = std::span(&desc, 1),
                    .remote = std::span(&remote, 1),
                    .flight = flight},
                   immediate);
}

void LibfabricDialledEndpoint::PollData() {
  std::vector<Done> done;
  for (uint32_t i = 0; i < rails_.size() && up(); ++i) {
    if (rails_[i].end == nullptr) continue;
    done.clear();
    absl::Status status = rails_[i].end->Poll(64, done);
    TakeDone(i, done, std::move(status));
    if (up()) TryProbe(i);
  }
}

void LibfabricDialledEndpoint::TakeDone(uint32_t index, std::span<const Done> done,
                                        absl::Status status) {
  std::vector<Done> failed;
  for (const Done& one : done) {
    if (one.immediate) continue;  // nobody writes to this side
    if (one.status.ok()) {
      OnDone(index, one.flight);
    } else {
      // A failed op fails its rail: the op may still write, and only closing the rail stops it.
      status.Update(one.status);
      failed.push_back(one);
    }
  }
  if (!status.ok()) FailRail(index, status, failed);
}

void LibfabricDialledEndpoint::OnDone(uint32_t index, const Flight& flight) {
  DialledRail& rail = rails_[index];
  if (flight.transfer == 0) {
    rail.probe_arrived = true;
    return UpIfProbed(index);
  }
  rail.worked = true;
  // The write is complete, so its bytes are visible before the peer receives this frame.
  if (flight.to_tell) {
    Tell(Immediate{.rail = static_cast<uint8_t>(index),
                   .life = rail.life.number(),
                   .immediate = *flight.to_tell});
  }
  OpDone(index, flight, absl::OkStatus());
}

// An op that fails for a reason of its own would fail over every rail. So when it fails for the
// second time the code differs from a rail's failure, and the agent does not post it again.
absl::Status LibfabricDialledEndpoint::OwnError(const Done& done) {
  if (!done.maybe_op) return done.status;
  const Culprit culprit{.transfer = done.flight.transfer, .remote = done.flight.remote};
  const bool before = std::ranges::find(culprits_, culprit) != culprits_.end();
  culprits_.push_back(culprit);
  if (culprits_.size() > kMaxCulprits) culprits_.pop_front();
  if (!before) return done.status;
  return absl::InternalError(
      absl::StrCat(done.status.message(), "; it failed before, over another endpoint"));
}

void LibfabricDialledEndpoint::OpDone(uint32_t rail, const Flight& flight, absl::Status status) {
  // Marks the read for a flush of GPU memory, which comes before the agent sees the completion.
  if (flight.into_gpu && status.ok()) backend_->OnRead(this, flight.op);
  Say(EventKind::kCompletion, flight.op, std::move(status), rail);
  if (stopping_.OnOpDone(flight.transfer)) FenceDone(flight.transfer);
}

// Ops in flight cannot be cancelled one by one, so their completion is waited for.
void LibfabricDialledEndpoint::Fence(FenceScope scope) {
  const uint64_t transfer = scope.transfer;
  if (!up() || transfer == FenceScope::kEveryTransfer || stopping_.contains(transfer)) return;
  size_t ops = 0;
  for (const DialledRail& rail : rails_) {
    ops += rail.end == nullptr ? 0 : rail.end->CountOf(transfer);
  }
  if (ops == 0) return FenceDone(transfer);
  stopping_.Add(transfer, ops, Progress(), Now());
  Reschedule();
}

std::vector<uint64_t> LibfabricDialledEndpoint::Progress() const {
  std::vector<uint64_t> out;
  for (const DialledRail& rail : rails_) {
    out.push_back(rail.end == nullptr ? 0 : rail.end->progress());
  }
  return out;
}

void LibfabricDialledEndpoint::CheckStuckFences(Time now) {
  for (const auto& [rail, transfer] : stopping_.TakeStuck(now, Progress())) {
    if (rails_[rail].end == nullptr || rails_[rail].end->CountOf(transfer) == 0) continue;
    FailRail(rail,
             absl::UnavailableError(absl::StrCat(
                 "transfer ", transfer, " has to stop, and what was posted of it does not end")));
  }
}

// The peer answers when it has received every immediate that was sent until now. It only counts
// them, so none that is sent later may arrive before those; held_until ensures that. Count
// precedes Quiet on the control stream, so the peer knows the number by then.
void LibfabricDialledEndpoint::FenceDone(uint64_t transfer) {
  Emit(MakeFenced(this, {.transfer = transfer}));
  TellCounts();
  for (DialledRail& rail : rails_) rail.held_until = rail.sent;
  Tell(Quiet{.transfer = transfer});
}

void LibfabricDialledEndpoint::TellCounts() {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    DialledRail& rail = rails_[i];
    if (!rail.life.up() || rail.announced == rail.sent) continue;
    Tell(Count{.rail = static_cast<uint8_t>(i), .life = rail.life.number(), .count = rail.sent});
    rail.announced = rail.sent;
  }
}

void LibfabricDialledEndpoint::BeBusy() {
  if (!std::exchange(reported_busy_, true)) Tell(Busy{});
}

// Lets the peer sleep too, once it has received the immediates that Count announces.
void LibfabricDialledEndpoint::Rest() {
  const auto probing = [](const DialledRail& rail) { return rail.life.probing(); };
  if (!busy() || InFlight() || std::ranges::any_of(rails_, probing) || Now() < busy_until_) return;
  reported_busy_ = false;
  TellCounts();
  Tell(Idle{});
}

bool LibfabricDialledEndpoint::unread() const {
  return std::ranges::any_of(
      rails_, [](const DialledRail& rail) { return rail.end != nullptr && rail.end->unread(); });
}

bool LibfabricDialledEndpoint::InFlight() const {
  return std::ranges::any_of(rails_, [](const DialledRail& rail) {
    return rail.end != nullptr && rail.end->in_flight() > 0;
  });
}

}  // namespace kvxfer::libfabric
