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

// A fenced transfer whose ops do not end for so long takes its link with it.
constexpr Duration kFencePatience = std::chrono::seconds(2);
// Where there is no room for the first op, it is waited for so long without being asked again.
constexpr Duration kRoomPatience = std::chrono::milliseconds(10);

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
  if (!up()) return 0;
  size_t accepted = 0;
  for (const Op& op : ops) {
    if (absl::Status status = CheckOp(op); !status.ok()) {
      OpDone(op.rail, {.op = op.id, .transfer = op.transfer}, std::move(status));
      ++accepted;
      continue;
    }
    if (!rails_[op.rail].up) break;
    absl::StatusOr<bool> posted = PostOp(op);
    BeBusy();
    if (posted.ok() && !*posted) {
      busy_until_ = Now() + kRoomPatience;
      break;
    }
    ++accepted;
    if (posted.ok()) continue;
    // The link ends for it, in the next Poll.
    failure_.Update(posted.status());
    OpDone(op.rail, {.op = op.id, .transfer = op.transfer}, posted.status());
  }
  return accepted;
}

absl::StatusOr<bool> DialledLink::PostOp(const Op& op) {
  Rail& rail = rails_[op.rail];
  std::array<iovec, kMaxRuns> local;
  std::array<void*, kMaxRuns> descs;
  std::array<fi_rma_iov, kMaxRuns> remote;
  size_t count = 0;
  for (const Run& run : op.runs) {
    if (run.bytes == 0) continue;
    const auto& key = static_cast<const LibfabricRemoteKey&>(*run.key);
    local[count] = {.iov_base = reinterpret_cast<void*>(run.local), .iov_len = run.bytes};
    descs[count] = static_cast<const LibfabricRegistration&>(*run.registration).desc(op.rail);
    remote[count] = {
        .addr = key.Place(op.rail, run.remote), .len = run.bytes, .key = key.key(op.rail)};
    ++count;
  }
  const Flight flight{.op = op.id, .transfer = op.transfer};
  const auto immediate = op.has_immediate ? std::optional(op.immediate) : std::nullopt;
  const bool read = op.kind == OpKind::kRead;
  if (count == 0 && (read || !immediate)) {
    OpDone(op.rail, flight, absl::OkStatus());
    return true;
  }
  if (count == 0) return PostNothing(rail, immediate, flight);
  return rail.end->Post({.read = read,
                         .local = std::span(local).first(count),
                         .descs = std::span(descs).first(count),
                         .remote = std::span(remote).first(count),
                         .immediate = read ? std::nullopt : immediate,
                         .flight = flight});
}

absl::StatusOr<bool> DialledLink::PostNothing(Rail& rail, std::optional<uint32_t> immediate,
                                              const Flight& flight) {
  const Domain& domain = rail.end->domain();
  const iovec local{.iov_base = const_cast<void*>(domain.nothing()), .iov_len = Domain::kNothing};
  void* desc = domain.nothing_desc();
  const fi_rma_iov remote{.addr = rail.sink, .len = Domain::kNothing, .key = rail.sink_key};
  return rail.end->Post({.local = std::span(&local, 1),
                         .descs = std::span(&desc, 1),
                         .remote = std::span(&remote, 1),
                         .immediate = immediate,
                         .flight = flight});
}

void DialledLink::OpDone(uint32_t rail, const Flight& flight, absl::Status status) {
  if (absl::IsUnavailable(status)) failure_.Update(status);
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
  for (const Rail& rail : rails_) ops += rail.end->CountOf(transfer);
  if (ops == 0) return FenceDone(transfer);
  stopping_[transfer] = {.ops = ops, .patience = Now() + kFencePatience};
  backend_->hub().TimersChanged();
}

void DialledLink::FenceDone(uint64_t transfer) {
  Say(EventKind::kFenced, transfer);
  Tell(Quiet{.transfer = transfer});
}

}  // namespace kvxfer::libfabric
