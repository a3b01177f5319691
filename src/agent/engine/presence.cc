#include "src/agent/engine/presence.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/short_list.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {
// Bounds the memory: beyond kMaxEntries the peers without a connection are forgotten.
constexpr size_t kMaxEntries = 16 * 1024;

std::string Silence(Time heard, Time now) {
  const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - heard);
  return absl::StrCat("no sign of life for ", silent.count(), " ms: stopped, or cut off");
}

}  // namespace

void Presence::LinkUp(const std::string& peer, const Incarnation& incarnation) {
  const Key key{peer, incarnation};
  if (entries_.size() >= kMaxEntries && !entries_.contains(key)) {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.links == 0; });
  }
  Entry& entry = entries_[key];
  if (entry.links++ > 0) return;
  const bool first = entry.state == State::kNew;
  entry.state = State::kUp;
  Tell(key, first ? PeerEventKind::kJoined : PeerEventKind::kBack, absl::OkStatus());
}

void Presence::LinkDown(const std::string& peer, const Incarnation& incarnation,
                        const absl::Status& why) {
  const auto it = entries_.find({peer, incarnation});
  if (it == entries_.end() || it->second.links == 0 || --it->second.links > 0) return;
  if (it->second.state == State::kSuspect) --suspects_;
  it->second.state = State::kLost;
  Tell(it->first, PeerEventKind::kLost, why);
}

void Presence::Suspect(const std::string& peer, const Incarnation& incarnation, Time heard,
                       Time now) {
  const auto it = entries_.find({peer, incarnation});
  if (it == entries_.end() || it->second.state != State::kUp) return;
  it->second.state = State::kSuspect;
  it->second.heard = heard;
  ++suspects_;
  Tell(it->first, PeerEventKind::kSuspect, absl::UnavailableError(Silence(heard, now)));
}

std::string Presence::SilenceOf(const std::string& peer, const Incarnation& incarnation,
                                Time now) const {
  if (suspects_ == 0) return {};
  const auto it = entries_.find({peer, incarnation});
  if (it == entries_.end() || it->second.state != State::kSuspect) return {};
  return Silence(it->second.heard, now);
}

std::string Presence::Silent(Time now) const {
  ShortList all;
  if (suspects_ == 0) return {};
  for (const auto& [key, entry] : entries_) {
    if (entry.state != State::kSuspect || !all.Add()) continue;
    all.Name(absl::StrCat("peer ", key.first, ": ", Silence(entry.heard, now)));
  }
  return all.Text();
}

void Presence::Heard(const std::string& peer, const Incarnation& incarnation) {
  if (suspects_ == 0) return;
  const auto it = entries_.find({peer, incarnation});
  if (it == entries_.end() || it->second.state != State::kSuspect) return;
  it->second.state = State::kUp;
  --suspects_;
  Tell(it->first, PeerEventKind::kBack, absl::OkStatus());
}

void Presence::Forget(const std::string& peer, const Incarnation& incarnation) {
  const auto it = entries_.find({peer, incarnation});
  if (it != entries_.end() && it->second.links == 0) entries_.erase(it);
}

void Presence::Tell(const Key& key, PeerEventKind kind, const absl::Status& why) {
  const bool trouble = kind == PeerEventKind::kSuspect || kind == PeerEventKind::kLost;
  // This side closed the connection, or the peer did and said so: not worth a warning.
  const bool wanted = absl::IsCancelled(why) || absl::EndsWith(why.message(), kAgentClosed) ||
                      absl::EndsWith(why.message(), kPeerRemoved);
  Log(trouble && !wanted ? LogLevel::kWarning : LogLevel::kInfo, "peer {} {}{}{}", key.first,
      ToString(kind), why.ok() ? "" : ": ", ToStd(why.message()));
  events_->Push(PeerEvent{key.first, key.second, kind, why});
}

const char* ToString(PeerEventKind kind) {
  switch (kind) {
    case PeerEventKind::kJoined:
      return "joined";
    case PeerEventKind::kSuspect:
      return "suspect";
    case PeerEventKind::kLost:
      return "lost";
    case PeerEventKind::kBack:
      return "back";
  }
  return "?";
}

}  // namespace kvxfer
