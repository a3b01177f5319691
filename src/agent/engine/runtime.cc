#include "src/agent/engine/runtime.h"

#include <string>
#include <utility>

#include "src/agent/engine/transfer_group.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {

Handshake::Side Runtime::NewSide(size_t backend) const {
  Handshake::Side side{
      .key = &*key, .incarnation = incarnation, .backend = std::string(backends[backend]->name())};
  FillRandom(side.nonce);
  return side;
}

void Runtime::Publish(const TransferPtr& record, internal::TransferRecord::End&& end) {
  // Before the member's own end is published, which moves `end`.
  if (record->whole != nullptr) OnMemberEnd(*record, end);
  auto due = record->Publish(std::move(end));
  if (due.callback) {
    dispatcher.Run([callback = std::move(due.callback), record] {
      callback(internal::TransferRecord::Handle(record));
    });
  }
  for (const EndLane lane : {EndLane::kPosted, EndLane::kWatched}) {
    const auto& word = due.words[static_cast<size_t>(lane)];
    if (word.has_value()) events.PushEnd(record, lane, *word);
  }
  loop.Wake(record.get());
}

void Runtime::ClearQuarantine(const TransferPtr& record) {
  const bool was = record->quarantined();
  record->ClearQuarantine();
  loop.Wake(record.get());
  const TransferPtr& whole = record->whole;
  // OnQuiet counts in any case. A group that has not ended yet takes the count into its end.
  if (!was || whole == nullptr || !whole->group->OnQuiet() || !whole->ended()) return;
  whole->ClearQuarantine();
  loop.Wake(whole.get());
}

void Runtime::OnMemberEnd(const internal::TransferRecord& member,
                          const internal::TransferRecord::End& end) {
  internal::TransferGroup& group = *member.whole->group;
  if (group.OnEnd(member, end)) broken_groups.push_back(member.whole);
  if (group.ended()) Publish(member.whole, group.TakeEnd());
}

}  // namespace kvxfer
