// Several transfers that the application sees as one. Each of them is a member. The application
// holds the record of the group (`whole`), which has a TransferGroup.
//
// Thread-safety: `members` is constant once they are posted; everything else by the driver only.

#ifndef KVXFER_AGENT_ENGINE_TRANSFER_GROUP_H_
#define KVXFER_AGENT_ENGINE_TRANSFER_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/agent/engine/transfer_record.h"

namespace kvxfer::internal {

class TransferGroup {
 public:
  // A member by peer and id. It is not a pointer, because members point to the group's record.
  struct Member {
    std::string peer;
    uint64_t id = 0;
  };

  explicit TransferGroup(std::vector<Member> of)
      : members(std::move(of)), active_(members.size()) {}

  const std::vector<Member> members;

  // A member has ended. True: it is the first that did not end as done, so the others must be
  // cancelled.
  bool OnEnd(const TransferRecord& member, const TransferRecord::End& end);
  bool ended() const { return active_ == 0; }
  // The end of the group, once every member has ended.
  TransferRecord::End TakeEnd();

  // The quarantine of a member is over. True: no other member is quarantined.
  bool OnQuiet() { return --quarantined_ == 0; }

 private:
  size_t active_;
  size_t quarantined_ = 0;
  TransferRecord::End end_{.state = TransferState::kDone, .delivery = Delivery::kNone};
};

}  // namespace kvxfer::internal

#endif  // KVXFER_AGENT_ENGINE_TRANSFER_GROUP_H_
