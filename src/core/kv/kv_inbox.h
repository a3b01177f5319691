// Parts of requests that several workers write into one KV cache: which heads of which layers are
// there, when a request is whole, and which requests never became whole.
//
// A request is named by its sources, all of them in the same words, and for one attempt only: who
// tries again uses another name. What a part says of the blocks that it went to must be the same in
// all parts of a request, so that attempts at other blocks never add up to one, whatever their
// name. Sources are trusted not to name the requests of others.
//
// Specification, held by a test over every order in which the parts of small instances can come and
// by random ones: a request is whole with exactly the part that brings the last head of the last
// layer; its layers are ready in order, each with the last of its heads; no part counts twice.
//
// Thread-safety: none; owned by the progress engine. Memory: a bit for each head and layer of a
// request that is under way, at most kMaxRequests of them, and its notification; kMaxTold names of
// those that ended; a name has at most kMaxNameBytes.

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

namespace kvxfer {

// What one transfer has brought.
struct KvPart {
  std::string request{};
  uint64_t blocks_hash = 0;  // of the ids and the tokens that the request went to
  KvHeads heads{};           // of the model, as layers
  uint32_t first_layer = 0;
  uint32_t layers = 0;
  std::optional<std::string> notification{};
};

class KvInbox {
 public:
  static constexpr size_t kMaxRequests = 1 << 16;
  static constexpr size_t kMaxTold = 2 * kMaxRequests;
  static constexpr size_t kMaxNotificationBytes = 64 << 20;  // of all requests under way

  // Of the cache with this layout.
  explicit KvInbox(const KvLayout& layout)
      : heads_(layout.heads()),
        first_layer_(layout.shard().first_layer),
        layers_(layout.shard().layers) {}

  struct Taken {
    bool whole = false;  // with this part, and so forgotten
    // Then: of the last part that had one.
    std::optional<std::string> notification{};
  };
  // A part has arrived from `peer`. `expires`: when the request is given up, unless a later part
  // says a later time. InvalidArgument: a bad name, heads or layers that this cache has not, that
  // another part has brought, or of other blocks; FailedPrecondition: the request has ended;
  // ResourceExhausted: too many are under way, or too many bytes of notifications. A request of
  // which a part was refused is never told as whole.
  absl::StatusOr<Taken> Take(KvPart part, std::string_view peer, Time expires);

  // Layers that are there with all heads, from the first of the cache on, as long as none is
  // missing: all of them where the request was whole before, 0 where nothing of it has come.
  // Aborted: it was given up.
  absl::StatusOr<uint32_t> LayersReady(std::string_view request) const;

  // Gives a request up, begun or not: parts that still come are refused. False: it is not under
  // way.
  bool Drop(std::string_view request);

  // A request that was given up, and what of it was missing, for a person.
  struct Lost {
    std::string request{};
    std::string missing{};
  };
  // Gives up those that have expired.
  std::vector<Lost> Expire(Time now);
  std::optional<Time> NextExpiry() const;

  uint32_t layers() const { return layers_; }  // of the cache
  size_t under_way() const { return requests_.size(); }

 private:
  struct Request {
    uint64_t blocks_hash = 0;
    std::vector<bool> there{};  // [layer][head]
    uint32_t missing = 0;
    uint32_t ready = 0;  // layers
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
  size_t At(uint32_t layer, uint32_t head) const { return size_t{layer} * heads_.count + head; }
  absl::Status Keep(Request& request, KvPart& part, std::string_view peer);
  void Advance(Request& request) const;
  void End(Requests::iterator at, bool whole);
  void Remember(const std::string& request, bool whole);
  std::string Missing(const Request& request) const;

  const KvHeads heads_;
  const uint32_t first_layer_;
  const uint32_t layers_;
  Requests requests_;
  size_t notification_bytes_ = 0;
  std::set<std::pair<Time, std::string>> by_expiry_;
  std::unordered_map<std::string, bool, Hash, std::equal_to<>> told_;  // the last kMaxTold: whole?
  std::deque<std::string> told_order_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_INBOX_H_
