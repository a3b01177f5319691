// What a transfer to one peer holds from the moment it is posted to its end: a place among those
// that are posted, its deadline, and the use of its local regions and of its blocks' ids.
//
// Thread-safety: none but for `count`; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_POSTED_BOOK_H_
#define KVXFER_AGENT_SESSION_POSTED_BOOK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/core/base/clock.h"
#include "src/core/base/keeping_allocator.h"

namespace kvxfer {

class PostedBook {
 public:
  using Count = std::shared_ptr<std::atomic<uint32_t>>;

  explicit PostedBook(Runtime* runtime) : runtime_(runtime) {}
  // Posted and not ended; the API threads read it.
  const Count& count() const { return count_; }

  // It is posted. `refused`: OK, or why nothing can be. Not OK: that, or its regions cannot be
  // used. It holds nothing then but its place, and is to leave.
  absl::Status Enter(internal::TransferRecord& record, const absl::Status& refused);
  // The stager made it, for a transfer that uses the same regions.
  void EnterChild(const internal::TransferRecord& record);
  // It has ended.
  void Leave(const internal::TransferRecord& record);
  // And nothing reads its blocks or its memory any more.
  void LetMemoryGo(internal::TransferRecord& record);

  // One whose deadline has come, each once.
  std::optional<uint64_t> TakeDue(Time now);
  // Time::max(): none has one.
  Time next() const { return deadlines_.empty() ? Time::max() : deadlines_.begin()->first; }

 private:
  Runtime* const runtime_;
  const Count count_ = std::make_shared<std::atomic<uint32_t>>(0);
  using Deadline = std::pair<Time, uint64_t>;
  std::set<Deadline, std::less<>, KeepingAllocator<Deadline>> deadlines_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_POSTED_BOOK_H_
