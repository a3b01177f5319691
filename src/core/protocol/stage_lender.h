// The staging buffers that this agent lends to initiators: which session has which, which sessions
// wait, and which to ask to return some. ("Buffer" in the names here is a staging buffer.) There
// are few buffers, because their memory is pinned, and there may be many initiators. When no buffer
// is left, each holder is asked once to return what it does not need, and each waiting session gets
// one in turn, then more.
//
// Pure. Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_
#define KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace kvxfer {

class StageLender {
 public:
  // Identifies a session; 0: none.
  using SessionId = uint64_t;
  // The most buffers that one initiator holds.
  static constexpr uint32_t kMaxHeld = 8;

  // The buffers [0, buffers).
  explicit StageLender(uint32_t buffers = 0) { SetBuffers(buffers); }
  // Adds the buffers [0, buffers); called once.
  void SetBuffers(uint32_t buffers);

  // `session_id` asks for `count` buffers. FailedPrecondition: it still waits for an earlier
  // request.
  absl::Status Ask(SessionId session_id, uint32_t count);
  // `session_id` returns buffers. InvalidArgument: it does not hold one of them.
  absl::Status Back(SessionId session_id, std::span<const uint32_t> buffers);
  // `session_id` is gone: nothing is in flight into its buffers, but this agent uses the `busy`
  // ones until Free.
  void Release(SessionId session_id, const std::set<uint32_t>& busy);
  void Free(uint32_t buffer);

  bool Holds(SessionId session_id, uint32_t buffer) const;
  bool HoldsAny(SessionId session_id) const;
  // True while a session waits.
  bool short_of_buffers() const { return !waiting_.empty(); }

  // Removes and returns the sessions to inform: of the buffers that they now have (TakeLent), and
  // that others wait (TakeRecalled). Each is returned once.
  struct Lent {
    SessionId session_id = 0;
    std::vector<uint32_t> buffers{};
  };
  std::vector<Lent> TakeLent();
  std::vector<SessionId> TakeRecalled();

 private:
  struct Holder {
    std::set<uint32_t> buffers{};
    bool recalled = false;  // was asked to return some since it last got one
  };
  struct Wish {
    SessionId session_id = 0;
    uint32_t count = 0;
  };
  void Serve();

  std::vector<uint32_t> free_;
  std::map<SessionId, Holder> holders_;
  std::deque<Wish> waiting_;  // each session at most once
  std::vector<Lent> lent_;
  std::vector<SessionId> recalled_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_
