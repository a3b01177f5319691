// The target's half of a session: what the initiator's frames and immediates mean for the transfers
// that come in, and what has to be quiet before the initiator may be told that something is over.
// ArrivalTracker counts and orders; this class knows the connections, called links, and asks for
// the fences that it waits for. Pure: it receives events, and answers with a list of actions. The
// exhaustive and the random search run it (tests/unit/core/protocol/protocol_model.h).
//
// Rules:
//  - An aborted transfer is over when each link of the session has fenced it, or is down. A link
//    that joins in the meantime is asked too, for data of the transfer may come over it as well.
//    Nothing is asked of a link that is closing; it counts once it is down.
//  - What the transfer left on a rail that failed is quiet only when that rail is. While a rail of
//    a link is being fenced, the link has not fenced any transfer.
//  - A rail is fenced once for each time that the initiator asks for it. It asks again only after
//    it was answered (OnAnswered). Anything else is a protocol error.
//
//        kUp ── OnFenceRail ──► kFencing ── OnRailFenced ──► kFenced ── OnAnswered ──► kUp
//
//  - DISCARD names lanes of rails that were fenced before. So it is a protocol error where no rail
//    of the session ever was, and what it names is drained at once.
//  - The initiator may have as many notifications here as it has credit for, and a bounded number
//    of transfers.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_TARGET_SESSION_H_
#define KVXFER_CORE_PROTOCOL_TARGET_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "kvxfer/notification.h"
#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// How many payload bytes the application takes before their credit is returned: a quarter of what
// one initiator may have outstanding, but at most so much that the largest payload still fits.
inline uint64_t CreditByteStep(uint64_t max_notification_bytes) {
  return std::min(max_notification_bytes / 4, (max_notification_bytes - kMaxNotificationBytes) / 2);
}

class TargetSession {
 public:
  // What an initiator can make this side keep.
  struct Limits {
    uint64_t notifications = 0;  // that the application has not taken
    uint64_t notification_bytes = 0;
    size_t transfers = 0;  // that have not ended
  };
  struct Fence {
    uint64_t link = 0;
    FenceScope scope{};
  };
  // To be done in this order.
  struct Actions {
    ArrivalTracker::Actions tracked{};  // but for what it wants fenced
    std::vector<Fence> fences{};        // to begin; OnFenced or OnRailFenced answers each
    void clear() {
      tracked.clear();
      fences.clear();
    }
  };

  // `slots` outlives the session, which is `session_id` in it.
  TargetSession(SlotTable* slots, SlotTable::SessionId session_id, const Limits& limits)
      : limits_(limits), tracker_(slots, session_id) {}

  // What returns a status returns InvalidArgument or ResourceExhausted for a peer that breaks the
  // protocol. Then the session fails: of all this only OnLinkClosing, OnLinkDown and GiveOut are
  // called after that.

  // Links have numbers that the session never uses twice.
  void AddLink(uint64_t link);
  // Nothing is asked of it any more.
  void OnLinkClosing(uint64_t link);
  absl::Status OnLinkDown(uint64_t link);

  // Whether frames of `type` are for OnFrame: those about transfers.
  static bool Takes(FrameType type);
  absl::Status OnFrame(const ReliableChannel::Incoming& frame);
  absl::Status OnImmediate(uint32_t immediate);
  // Of Actions::fences.
  absl::Status OnFenced(uint64_t link, uint64_t transfer);
  absl::Status OnRailFenced(uint64_t link, uint32_t rail);
  // The initiator asks for a fence of a rail of `link`, which has `rails` by now.
  absl::Status OnFenceRail(uint64_t link, uint32_t rail, size_t rails);
  // Whether what the initiator has sent by now is within its limits and its credit.
  absl::Status CheckLimits() const;

  // A rail that the initiator is to be told of as fenced; nullopt: none. OnAnswered: it is told.
  std::optional<uint32_t> NextFencedRail(uint64_t link) const;
  void OnAnswered(uint64_t link, uint32_t rail);

  // What the initiator is to be told of its credit, where the application has taken so much since
  // the session began; nullopt: nothing yet. It is told once a quarter has come back, so that it is
  // not a frame a notification.
  std::optional<CreditFrame> TakeCredit(const CreditFrame& taken);

  bool has_actions() const { return !asked_.empty() || tracker_.has_actions(); }
  // Replaces what is in `out`, whose memory it uses. There may be more afterwards.
  absl::Status TakeActions(Actions& out);
  // ArrivalTracker::GiveOut: the session is over.
  ArrivalTracker::Deliveries GiveOut() { return tracker_.GiveOut(); }

 private:
  friend struct ProtocolModelAccess;  // the tests' search copies and compares states

  enum class RailState : uint8_t { kUp, kFencing, kFenced };
  struct Link {
    bool closing = false;
    std::vector<RailState> rails{};   // as many as have been asked about
    std::vector<uint64_t> waiting{};  // transfers that are fenced but for the rails in kFencing
  };

  absl::Status OnDiscard(const DiscardFrame& frame);
  absl::Status StartFence(uint64_t transfer);
  absl::Status LinkIsQuiet(uint64_t link, uint64_t transfer);
  static bool FencesRails(const Link& link);

  const Limits limits_;
  ArrivalTracker tracker_;
  std::map<uint64_t, Link> links_;
  std::map<uint64_t, std::set<uint64_t>> fencing_;  // transfer → links that have not fenced it
  bool rails_failed_ = false;                       // a rail was fenced since the session began
  CreditFrame credit_{};                            // the initiator knows of so much
  std::vector<Fence> asked_{};                      // fences to begin
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_TARGET_SESSION_H_
