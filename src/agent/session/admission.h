// From the queue to sending: which transfer begins, over which link, and how its bytes go. A
// transfer begins when its link is up and, if it has a notification, the target has credit for it.
//
// Transfers leave the queue in the order of posting, whatever their priority: order numbers are
// given out as they begin, and priority only says whose data goes first.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_ADMISSION_H_
#define KVXFER_AGENT_SESSION_ADMISSION_H_

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/outbound.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/session/send_queue.h"
#include "src/agent/session/sender.h"
#include "src/core/protocol/lane_book.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/send_tracker.h"

namespace kvxfer {

class Admission final : public Sender::User {
 public:
  class User {
   public:
    virtual ~User() = default;
    // It left the queue and cannot begin.
    virtual void OnRefused(const TransferPtr& record, absl::Status why) = 0;
  };
  // All of them outlive the admission. `peer` and `regions` are the peer's.
  struct Parts {
    Runtime* runtime = nullptr;
    const AgentMetadata* peer = nullptr;
    PathSet* paths = nullptr;
    RemoteRegions* regions = nullptr;
    SendTracker* tracker = nullptr;
    SendQueue* queue = nullptr;
    OutboundList* outbounds = nullptr;
    Sender* sender = nullptr;
  };
  Admission(const Parts& parts, User* user) : parts_(parts), user_(user) {}

  // Begins what may begin. False: the first of the queue waits for the peer's word on a region;
  // try again soon.
  bool Admit(Time now);
  // Begins one over `link`. Unavailable: the peer's word on one of its regions is still on its way.
  absl::Status Begin(const TransferPtr& record, Link* link);
  // True, once: another transfer of a layer stream may begin.
  bool TakeNextOfStream() { return std::exchange(next_of_stream_, false); }
  void OnLayerPosted(uint64_t layer_stream) override;

 private:
  absl::Status ResolveRegions(Outbound& outbound);
  absl::Status ResolveStaged(Outbound& outbound);
  std::optional<LaneBook> PrepareData(Outbound& outbound);
  static void LimitUnread(const BlockList& blocks, SliceLimits& limits);

  const Parts parts_;
  User* const user_;
  bool next_of_stream_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_ADMISSION_H_
