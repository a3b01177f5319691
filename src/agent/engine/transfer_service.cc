#include "src/agent/engine/transfer_service.h"

#include <algorithm>
#include <string>

#include "src/agent/engine/check_options.h"
#include "src/agent/engine/transfer_group.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How many transfers to one peer may be posted and not ended.
constexpr uint32_t kMaxQueued = 1u << 16;

}  // namespace

absl::Status TransferService::CheckOptions(const TransferOptions& options) const {
  if (auto status = CheckTransferOptions(options); !status.ok()) return status;
  if (options.backend.empty()) return absl::OkStatus();
  const Runtime& runtime = *parts_.runtime;
  const bool known = std::ranges::any_of(
      runtime.backends, [&](const auto& backend) { return backend->name() == options.backend; });
  if (known) return absl::OkStatus();
  const auto unusable =
      std::ranges::find(runtime.unusable, options.backend, &PathExplanation::backend);
  const bool explained = unusable != runtime.unusable.end();
  return absl::InvalidArgumentError(absl::StrCat("this agent has no backend ", options.backend,
                                                 explained ? ": " : "",
                                                 explained ? unusable->why : ""));
}

absl::StatusOr<TransferPtr> TransferService::Start(TransferKind kind, std::string_view peer,
                                                   const Blocks& blocks,
                                                   TransferOptions&& options) {
  if (auto status = gate().CheckNotForked(); !status.ok()) return status;
  if (auto status = gate().CheckTakesWork(); !status.ok()) return status;
  if (auto status = CheckOptions(options); !status.ok()) return status;
  const auto view = parts_.views->Find(peer);
  if (!view.ok()) return view.status();
  auto made = NewRecord(kind, *view, std::move(options));
  if (!made.ok()) return made.status();
  const TransferPtr record = *std::move(made);
  if (kind != TransferKind::kNotify) {
    const Direction direction = DirectionOf(kind);
    auto list = std::holds_alternative<PagedBlocks>(blocks)
                    ? BlockList::FromPaged(std::get<PagedBlocks>(blocks), direction, *record->local,
                                           *record->remote, parts_.runtime->ids)
                    : BlockList::FromDescriptors(std::get<DescriptorBlocks>(blocks), direction,
                                                 *record->local, *record->remote);
    if (!list.ok()) return list.status();
    record->blocks = *std::move(list);
  }
  auto after = cuda::StreamPoint::Take(record->options.after, record->options.after_event);
  if (!after.ok()) return after.status();
  record->after = *std::move(after);
  if (auto status = ReserveEnd(*record); !status.ok()) return status;
  // A command of the size of two pointers costs no allocation.
  auto status = Submit(record, [record] { record->poster->Enlist(record); });
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<TransferPtr> TransferService::NewRecord(TransferKind kind,
                                                       const std::shared_ptr<const PeerView>& view,
                                                       TransferOptions&& options) {
  // Not exact: threads that post at the same time may exceed it by their number.
  if (view->queued->load(std::memory_order_relaxed) >= kMaxQueued) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxQueued, " transfers to peer ", view->name,
                                                     " are queued; wait for some to end"));
  }
  auto record = std::make_shared<internal::TransferRecord>();
  record->kind = kind;
  record->peer = view->name;
  // Snapshots: the indices in `blocks` stay valid whatever is registered later.
  if (kind != TransferKind::kNotify) {
    record->local = parts_.runtime->memory.table();
    record->remote = view->regions;
  }
  record->incarnation = view->incarnation;
  record->options = std::move(options);
  record->posted = Now();
  record->deadline = record->posted + record->options.deadline;
  record->service = self_;
  record->poster = this;
  record->id = ++last_;
  return record;
}

absl::Status TransferService::PostGroup(const TransferPtr& whole, std::vector<TransferPtr> members,
                                        ProgressLoop::While asleep) {
  std::vector<internal::TransferGroup::Member> names;
  for (const TransferPtr& member : members) {
    member->whole = whole;
    whole->peer += (names.empty() ? "" : ",") + member->peer;
    names.push_back({.peer = member->peer, .id = member->id});
  }
  whole->service = self_;
  whole->id = ++last_;
  if (auto status = ReserveEnd(*whole); !status.ok()) return status;
  whole->group = std::make_unique<internal::TransferGroup>(std::move(names));
  if (members.empty()) {
    parts_.runtime->Publish(whole, {.state = TransferState::kDone});
    return absl::OkStatus();
  }
  return Submit(
      whole,
      [this, members = std::move(members)] {
        for (const TransferPtr& member : members) Enlist(member);
      },
      asleep);
}

absl::Status TransferService::NoPlaceForEnd() {
  return absl::ResourceExhaustedError(
      absl::StrCat(kMaxUnreadEnds,
                   " ends of transfers are asked for and not taken; call PollEvents more often"));
}

absl::Status TransferService::ReserveEnd(internal::TransferRecord& record) {
  if (!record.options.user_word.has_value()) return absl::OkStatus();
  if (!parts_.runtime->events.ReserveEnd(EndLane::kPosted)) return NoPlaceForEnd();
  record.AskEnd(EndLane::kPosted, *record.options.user_word);
  return absl::OkStatus();
}

absl::Status TransferService::Submit(const TransferPtr& handle, ProgressLoop::Command enlist,
                                     ProgressLoop::While asleep) {
  if (parts_.runtime->loop.Submit(std::move(enlist), asleep)) return absl::OkStatus();
  if (handle->options.user_word.has_value()) {
    parts_.runtime->events.ReturnPlace(EndLane::kPosted);
  }
  return CallGate::ClosedError();
}

// On the driver: hands a posted transfer to its peer, or ends it if the peer was removed or
// replaced after the planning.
void TransferService::Enlist(const TransferPtr& record) {
  Peer* const found = parts_.peers->Find(record->peer);
  // A transfer that another thread posted while draining began ends here. Drain counts those that
  // were enlisted earlier.
  const absl::Status working = gate().CheckTakesWork();
  if (working.ok() && found != nullptr && found->metadata().incarnation == record->incarnation) {
    found->Submit(record);
    return;
  }
  internal::TransferRecord::End end{.state = TransferState::kFailed,
                                    .status = absl::FailedPreconditionError(absl::StrCat(
                                        "peer ", record->peer, " was removed or replaced")),
                                    .delivery = record->options.notification.has_value()
                                                    ? Delivery::kNotDelivered
                                                    : Delivery::kNone};
  if (!working.ok()) end.status = working;
  if (parts_.peers->closed()) {
    end.state = TransferState::kCancelled;
    end.status = absl::CancelledError(kAgentClosed);
  }
  parts_.runtime->Publish(record, std::move(end));
}

void TransferService::Cancel(const TransferPtr& record) {
  parts_.runtime->loop.Submit([this, record] {
    parts_.peers->Cancel(*record, absl::CancelledError("cancelled by the application"));
  });
}

absl::Status TransferService::Watch(const TransferPtr& record, uint64_t user_word) {
  if (auto status = gate().CheckNotForked(); !status.ok()) return status;
  EventQueue& events = parts_.runtime->events;
  if (!events.ReserveEnd(EndLane::kWatched)) return NoPlaceForEnd();
  switch (record->AskEnd(EndLane::kWatched, user_word)) {
    case internal::TransferRecord::Asked::kFirst:
      break;
    case internal::TransferRecord::Asked::kAgain:
      events.ReturnPlace(EndLane::kWatched);
      break;
    case internal::TransferRecord::Asked::kEnded:
      events.PushEnd(record, EndLane::kWatched, user_word);
      break;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
