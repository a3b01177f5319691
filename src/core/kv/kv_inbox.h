// Collects the parts of requests that several workers write into one KV cache: which heads of which
// layers have arrived, when a request is complete, and which requests never became complete.
//
// All writers of a request use the same name for it, and a name is for one attempt: a retry uses
// another name. All parts of a request must also name the same target blocks and tokens (as a
// hash), so attempts at different blocks never add up to one request, whatever their names are.
// Writers are trusted not to use the names of others' requests.
//
// Specification, checked over every order in which the parts of small instances can arrive, and
// over random orders: a request becomes complete with exactly the part that brings the last head of
// the last layer; its layers become ready in order, each with the last of its heads; no part counts
// twice.
//
// Thread-safety: none; used by the progress engine. Memory: for at most kMaxRequests unfinished
// requests, one bit per head and layer and the notification; and the names of the last kMaxReported
// requests that ended, of at most kMaxNameBytes each.

#ifndef KVXFER_CORE_KV_KV_INBOX_H_
#define KVXFER_CORE_KV_KV_INBOX_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/base/clock.h"
#include "src/core/kv/kv_range.h"

namespace kvxfer {

// What one transfer brought of a request.
struct KvPart {
  std::string request{};
  uint64_t blocks_hash = 0;  // of the block ids and tokens that the request is written to
  KvRange range{};
  std::optional<std::string> notification{};
};

class KvInbox {
 public:
  static constexpr size_t kMaxRequests = 1 << 16;
  static constexpr size_t kMaxReported = 2 * kMaxRequests;
  static constexpr size_t kMaxNotificationBytes = 64 << 20;  // all unfinished requests together

  // The inbox of the cache that has this layout.
  explicit KvInbox(const KvLayout& layout) : has_(RangeOf(layout)) {}

  struct Taken {
    bool whole = false;  // this part completed the request, which is now forgotten
    // If whole: the notification of the last part that had one.
    std::optional<std::string> notification{};
  };
  // Records a part that arrived from `peer`. The request is given up at `expires`, unless a later
  // part gives a later time.
  // InvalidArgument: a bad name; heads or layers that this cache does not have or that another part
  // has brought; other blocks than the parts before. FailedPrecondition: the request has ended.
  // ResourceExhausted: too many unfinished requests, or too many bytes of notifications. After an
  // error a request that has not ended is given up and never becomes complete.
  absl::StatusOr<Taken> Take(KvPart part, std::string_view peer, Time expires);

  // The number of leading layers of the cache that have arrived with all their heads: all layers
  // after the request became complete, 0 if nothing has arrived. Aborted: the request was given up.
  absl::StatusOr<uint32_t> LayersReady(std::string_view request) const;

  // Gives up a request, whether or not it has begun; parts that still arrive are refused. False:
  // nothing of it has arrived, or it has ended.
  bool Drop(std::string_view request);

  // A request that was given up, and what was missing, as text for a person.
  struct Lost {
    std::string request{};
    std::string missing{};
  };
  // Gives up the requests that have expired by `now`.
  std::vector<Lost> Expire(Time now);
  std::optional<Time> NextExpiry() const;

  uint32_t layers() const { return has_.layers; }  // of the cache
  size_t under_way() const { return requests_.size(); }

 private:
  struct Request {
    uint64_t blocks_hash = 0;
    std::vector<bool> there{};  // [layer][head]: has arrived
    uint32_t missing = 0;
    uint32_t ready = 0;  // leading layers with all heads
    Time expires{};
    std::optional<std::string> notification{};
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Requests = std::unordered_map<std::string, Request, Hash, std::equal_to<>>;

  absl::Status CheckOfCache(const KvPart& part, std::string_view peer) const;
  absl::Status CheckNew(const KvPart& part, std::string_view peer, const Request& request) const;
  size_t At(uint32_t layer, uint32_t head) const { return size_t{layer} * has_.heads.count + head; }
  absl::Status Keep(Request& request, KvPart& part, std::string_view peer);
  void Advance(Request& request) const;
  void End(Requests::iterator at, bool whole);
  void Remember(const std::string& request, bool whole);
  std::string Missing(const Request& request) const;

  const KvRange has_;  // the cache
  Requests requests_;
  size_t notification_bytes_ = 0;
  std::set<std::pair<Time, std::string>> by_expiry_;
  // The last kMaxReported requests that ended; true: became complete.
  std::unordered_map<std::string, bool, Hash, std::equal_to<>> reported_;
  std::deque<std::string> reported_order_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_INBOX_H_
