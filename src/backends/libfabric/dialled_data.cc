// The connecting side's data: posting, completions, and making transfers quiet.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/dialled.h"
#include "src/backends/libfabric/regions.h"

namespace kvxfer::libfabric {
namespace {

// A fenced transfer has to end about then, and its source is read while an op of it is in flight: a
// rail with such an op on which nothing moves for so long is closed. What else was on it goes
// again.
constexpr Duration kFencePatience = std::chrono::milliseconds(80);
// Where there is no room for the first op, it is waited for so long without being asked again.
constexpr Duration kRoomPatience = std::chrono::milliseconds(10);
// Remembered: each has cost a rail.
constexpr size_t kMaxCulprits = 64;
// Immediates that go by the control stream: where so many bytes wait there, ops wait too.
constexpr size_t kMaxToTell = 64 * 1024;

}  // namespace

absl::Status DialledLink::CheckOp(const Op& op) const {
  const Capabilities& most = backend_->capabilities();
  uint64_t bytes = 0;
  bool complete = op.rail < rails_.size() && op.transfer != 0;
  for (const Run& run : op.runs) {
    complete = complete && run.key != nullptr && run.registration != nullptr &&
               static_cast<const LibfabricRemoteKey*>(run.key)->has(op.rail);
    bytes += std::min<uint64_t>(run.bytes, most.max_op_bytes + 1);
  }
  if (complete && op.runs.size() <= most.max_op_runs && bytes <= most.max_op_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("libfabric: op ", op.id, " is too large, or names no rail, transfer or key"));
}

size_t DialledLink::Post(std::span<const Op> ops) {
  size_t accepted = 0;
  for (const Op& op : ops) {
    if (!up()) break;
    const Flight flight{.op = op.id,
                        .transfer = op.transfer,
                        .remote = op.runs.empty() ? 0 : op.runs.front().remote};
    if (absl::Status status = CheckOp(op); !status.ok()) {
      OpDone(op.rail, flight, std::move(status));
      ++accepted;
      continue;
    }
    if (rails_[op.rail].state != Rail::State::kUp) break;
    absl::StatusOr<bool> posted = PostOp(op, flight);
    BeBusy();
    if (posted.ok() && !*posted) {
      busy_until_ = Now() + kRoomPatience;
      break;
    }
    ++accepted;
    busy_until_ = {};
    if (posted.ok()) continue;
    const Done failed{.flight = flight, .status = posted.status(), .maybe_op = true};
    FailRail(op.rail, posted.status(), std::span(&failed, 1));
  }
  return accepted;
}

absl::StatusOr<bool> DialledLink::PostOp(const Op& op, const Flight& flight) {
  Rail& rail = rails_[op.rail];
  std::array<iovec, kMaxRuns> local;
  std::array<void*, kMaxRuns> descs;
  std::array<fi_rma_iov, kMaxRuns> remote;
  size_t count = 0;
  bool of_gpu = false;
  for (const Run& run : op.runs) {
    if (run.bytes == 0) continue;
    const auto& registration = static_cast<const LibfabricRegistration&>(*run.registration);
    of_gpu = of_gpu || registration.of_gpu();
    const auto& key = static_cast<const LibfabricRemoteKey&>(*run.key);
    local[count] = {.iov_base = reinterpret_cast<void*>(run.local), .iov_len = run.bytes};
    descs[count] = registration.desc(op.rail);
    remote[count] = {
        .addr = key.Place(op.rail, run.remote), .len = run.bytes, .key = key.key(op.rail)};
    ++count;
  }
  const auto immediate = op.has_immediate ? std::optional(op.immediate) : std::nullopt;
  const bool read = op.kind == OpKind::kRead;
  if (count == 0 && (read || !immediate)) {
    OpDone(op.rail, flight, absl::OkStatus());
    return true;
  }
  if (count == 0) return PostNothing(rail, immediate, flight);
  End::Request request{.read = read,
                       .local = std::span(local).first(count),
                       .descs = std::span(descs).first(count),
                       .remote = std::span(remote).first(count),
                       .flight = flight};
  request.flight.into_gpu = read && of_gpu;
  return read ? rail.end->Post(request) : PostWrite(rail, request, immediate);
}

absl::StatusOr<bool> DialledLink::PostWrite(Rail& rail, End::Request request,
                                            std::optional<uint32_t> immediate) {
  const bool carried = immediate && rail.end->domain().carries_immediates();
  if (carried && (rail.sent - rail.heard >= kMaxUnheard ||
                  static_cast<int32_t>(rail.barrier - rail.heard) > 0)) {
    return false;
  }
  if (immediate && !carried && unsent() >= kMaxToTell) return false;
  (carried ? request.immediate : request.flight.to_tell) = immediate;
  absl::StatusOr<bool> posted = rail.end->Post(request);
  if (carried && posted.ok() && *posted) ++rail.sent;
  return posted;
}

absl::StatusOr<bool> DialledLink::PostNothing(Rail& rail, std::optional<uint32_t> immediate,
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

void DialledLink::PollData() {
  std::vector<Done> done;
  for (uint32_t i = 0; i < rails_.size() && up(); ++i) {
    if (rails_[i].end == nullptr) continue;
    done.clear();
    absl::Status status = rails_[i].end->Poll(64, done);
    TakeDone(i, done, std::move(status));
    if (up()) TryProbe(i);
  }
}

void DialledLink::TakeDone(uint32_t index, std::span<const Done> done, absl::Status status) {
  std::vector<Done> failed;
  for (const Done& one : done) {
    if (one.immediate) continue;  // nobody writes here
    if (one.status.ok()) {
      OnDone(index, one.flight);
    } else {
      status.Update(one.status);
      failed.push_back(one);
    }
  }
  if (!status.ok()) FailRail(index, status, failed);
}

void DialledLink::OnDone(uint32_t index, const Flight& flight) {
  Rail& rail = rails_[index];
  if (flight.transfer == 0) {
    rail.probe_landed = true;
    return UpIfProbed(index);
  }
  rail.worked = true;
  if (flight.to_tell) {
    Tell(
        Told{.rail = static_cast<uint8_t>(index), .life = rail.life, .immediate = *flight.to_tell});
  }
  OpDone(index, flight, absl::OkStatus());
}

// What an op ended with. One that ends so wherever it goes is told by another code than those of a
// rail, so that it does not go again.
absl::Status DialledLink::OwnError(const Done& done) {
  if (!done.maybe_op) return done.status;
  const Culprit culprit{.transfer = done.flight.transfer, .remote = done.flight.remote};
  const bool before = std::ranges::find(culprits_, culprit) != culprits_.end();
  culprits_.push_back(culprit);
  if (culprits_.size() > kMaxCulprits) culprits_.pop_front();
  if (!before) return done.status;
  return absl::InternalError(
      absl::StrCat(done.status.message(), "; it failed before, over another endpoint"));
}

void DialledLink::OpDone(uint32_t rail, const Flight& flight, absl::Status status) {
  if (flight.into_gpu && status.ok()) backend_->landed().OnRead(this, flight.op);
  Say(EventKind::kCompletion, flight.op, std::move(status), rail);
  if (stopping_.empty()) return;
  const auto it = stopping_.find(flight.transfer);
  if (it == stopping_.end() || --it->second.ops > 0) return;
  stopping_.erase(it);
  FenceDone(flight.transfer);
}

// What is on its way cannot be taken back one by one: it is waited for.
void DialledLink::Fence(uint64_t transfer) {
  if (!up() || transfer == 0 || stopping_.contains(transfer)) return;
  size_t ops = 0;
  for (const Rail& rail : rails_) ops += rail.end == nullptr ? 0 : rail.end->CountOf(transfer);
  if (ops == 0) return FenceDone(transfer);
  stopping_[transfer] = {.ops = ops, .patience = Now() + kFencePatience, .progress = Progress()};
  backend_->hub().TimersChanged();
}

std::vector<uint64_t> DialledLink::Progress() const {
  std::vector<uint64_t> out;
  for (const Rail& rail : rails_) out.push_back(rail.end == nullptr ? 0 : rail.end->progress());
  return out;
}

void DialledLink::Impatient(Time now) {
  std::vector<std::pair<uint32_t, uint64_t>> stuck;
  for (auto& [transfer, stopping] : stopping_) {
    if (stopping.patience > now) continue;
    const std::vector<uint64_t> before = std::exchange(stopping.progress, Progress());
    stopping.patience = now + kFencePatience;
    for (uint32_t i = 0; i < rails_.size(); ++i) {
      const bool still = before[i] == stopping.progress[i];
      if (still && rails_[i].end != nullptr && rails_[i].end->CountOf(transfer) > 0) {
        stuck.emplace_back(i, transfer);
      }
    }
    backend_->hub().TimersChanged();
  }
  for (const auto& [rail, transfer] : stuck) {
    FailRail(rail,
             absl::UnavailableError(absl::StrCat(
                 "transfer ", transfer, " has to stop, and what was posted of it does not end")));
  }
}

// The peer is to answer when it has every immediate that was sent. It counts them, so none that is
// sent from here on may come before those.
void DialledLink::FenceDone(uint64_t transfer) {
  Say(EventKind::kFenced, transfer);
  TellCounts();
  for (Rail& rail : rails_) rail.barrier = rail.sent;
  Tell(Quiet{.transfer = transfer});
}

void DialledLink::TellCounts() {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (rail.state != Rail::State::kUp || rail.told == rail.sent) continue;
    Tell(Count{.rail = static_cast<uint8_t>(i), .life = rail.life, .count = rail.sent});
    rail.told = rail.sent;
  }
}

void DialledLink::BeBusy() {
  if (!std::exchange(told_busy_, true)) Tell(Busy{});
}

// The peer may sleep too then, once it has read what was sent.
void DialledLink::Rest() {
  const auto probing = [](const Rail& rail) { return rail.state == Rail::State::kProbing; };
  if (!busy() || InFlight() || std::ranges::any_of(rails_, probing) || Now() < busy_until_) return;
  told_busy_ = false;
  TellCounts();
  Tell(Idle{});
}

bool DialledLink::unread() const {
  return std::ranges::any_of(
      rails_, [](const Rail& rail) { return rail.end != nullptr && rail.end->unread(); });
}

bool DialledLink::InFlight() const {
  return std::ranges::any_of(
      rails_, [](const Rail& rail) { return rail.end != nullptr && rail.end->in_flight() > 0; });
}

}  // namespace kvxfer::libfabric
