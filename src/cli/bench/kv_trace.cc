#include "src/cli/bench/kv_trace.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "src/cli/common/json_util.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
constexpr double kMaxMilliseconds = 1e12;

absl::StatusOr<TraceRequest> ParseLine(std::string_view line) {
  const absl::StatusOr<Json> json = ParseJsonObject(line);
  if (!json.ok()) return json.status();
  TraceRequest request;
  const auto timestamp = json->find("timestamp");
  if (timestamp == json->end() || !timestamp->is_number() || timestamp->get<double>() < 0 ||
      timestamp->get<double>() > kMaxMilliseconds) {
    return Invalid("'timestamp' is missing or not a number of milliseconds");
  }
  request.arrival_ns = static_cast<int64_t>(timestamp->get<double>() * 1e6);
  const absl::StatusOr<uint64_t> tokens = GetUint(*json, "input_length");
  if (!tokens.ok() || *tokens == 0 || *tokens > kMaxTokens) {
    return Invalid("'input_length' is missing or not a number from 1 to ", kMaxTokens);
  }
  request.tokens = *tokens;
  const auto ids = json->find("hash_ids");
  if (ids == json->end() || !ids->is_array()) {
    return Invalid("'hash_ids' is missing or not a list");
  }
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return Invalid("'hash_ids' has an element that is not a whole number");
    }
    request.hash_ids.push_back(id.get<uint64_t>());
  }
  if (request.hash_ids.size() > (*tokens + kTokensPerHash - 1) / kTokensPerHash) {
    return Invalid(request.hash_ids.size(), " 'hash_ids' of ", kTokensPerHash,
                   " tokens are more than the ", *tokens, " of 'input_length'");
  }
  return request;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ParseKvTrace(std::string_view name, std::string_view text,
                                                       uint64_t limit) {
  std::vector<TraceRequest> requests;
  size_t number = 0;
  int64_t first_ns = 0;
  int64_t last_ns = 0;
  while (!text.empty() && (limit == 0 || requests.size() < limit)) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    absl::StatusOr<TraceRequest> request = ParseLine(line);
    if (request.ok() && !requests.empty() && request->arrival_ns < last_ns) {
      request = Invalid("'timestamp' is earlier than on the line before");
    }
    if (!request.ok()) {
      return Invalid("trace ", ToAbsl(name), ", line ", number, ": ", request.status().message());
    }
    last_ns = request->arrival_ns;
    if (requests.empty()) first_ns = last_ns;
    request->arrival_ns -= first_ns;
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) {
    return Invalid("trace ", ToAbsl(name), " has no request");
  }
  return requests;
}

absl::StatusOr<std::vector<TraceRequest>> LoadKvTrace(const std::string& path, uint64_t limit) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(
        absl::StrCat("trace '", path, "' is not a readable file, or is empty"));
  }
  return ParseKvTrace(path, text.view(), limit);
}

PrefixCache::PrefixCache(uint32_t blocks, uint64_t block_tokens, uint64_t seed)
    : block_tokens_(block_tokens), free_(blocks, seed) {}

void PrefixCache::Pin(Entry& entry) {
  if (entry.pins++ > 0) return;
  idle_.erase(entry.idle);
  idle_blocks_ -= entry.blocks.size();
}

bool PrefixCache::EvictFor(size_t blocks) {
  if (blocks > free_.available() + idle_blocks_) return false;
  while (free_.available() < blocks) {
    const auto victim = entries_.find(idle_.front());
    free_.Free(victim->second.blocks);
    idle_blocks_ -= victim->second.blocks.size();
    idle_.pop_front();
    entries_.erase(victim);
  }
  return true;
}

std::optional<PrefixCache::Placement> PrefixCache::Place(const TraceRequest& request) {
  Placement placement;
  size_t hits = 0;
  uint64_t have = 0;  // blocks of the hits
  for (; hits < request.hash_ids.size(); ++hits) {
    const auto entry = entries_.find(request.hash_ids[hits]);
    if (entry == entries_.end()) break;
    have += entry->second.blocks.size();
    Pin(entry->second);
    placement.pinned.push_back(entry->first);
  }
  const uint64_t all = request.blocks(block_tokens_);
  const size_t needed = all > have ? all - have : 0;
  if (!EvictFor(needed)) {
    Release(placement);
    return std::nullopt;
  }
  placement.hit_tokens = std::min(request.tokens, hits * kTokensPerHash);
  placement.blocks = free_.Allocate(needed).value_or(std::vector<uint32_t>{});
  // Stores the new blocks under their ids. An id that is in the cache, but follows one that is not,
  // keeps its blocks.
  const uint64_t per_hash = std::max<uint64_t>(kTokensPerHash / block_tokens_, 1);
  size_t used = 0;
  for (size_t i = hits; i < request.hash_ids.size() && used < needed; ++i) {
    const size_t count = std::min<size_t>(per_hash, needed - used);
    const auto part = placement.blocks.begin() + static_cast<ptrdiff_t>(used);
    std::vector<uint32_t> blocks(part, part + static_cast<ptrdiff_t>(count));
    used += count;
    const auto [entry, fresh] = entries_.try_emplace(request.hash_ids[i]);
    if (!fresh) {
      placement.unnamed.insert(placement.unnamed.end(), blocks.begin(), blocks.end());
      continue;
    }
    entry->second.blocks = std::move(blocks);
    entry->second.pins = 1;
    placement.pinned.push_back(request.hash_ids[i]);
  }
  placement.unnamed.insert(placement.unnamed.end(),
                           placement.blocks.begin() + static_cast<ptrdiff_t>(used),
                           placement.blocks.end());
  return placement;
}

// From the back, so that the end of a prompt, which fewer prompts share, is evicted before its
// beginning.
void PrefixCache::Release(const Placement& placement) {
  std::for_each(placement.pinned.rbegin(), placement.pinned.rend(), [this](auto id) {
    Entry& entry = entries_.at(id);
    if (--entry.pins > 0) return;
    entry.idle = idle_.insert(idle_.end(), id);
    idle_blocks_ += entry.blocks.size();
  });
  free_.Free(placement.unnamed);
}

TraceSource::TraceSource(const TraceSpec& spec, const LoopSpec& loop,
                         std::span<const PagedRegion> local, std::span<const PagedRegion> remote,
                         size_t streams)
    : spec_(spec),
      loop_(loop),
      local_(local),
      remote_(remote),
      target_(spec.cache_blocks, spec.block_tokens, TargetSeed(spec.seed)),
      source_(spec.cache_blocks, InitiatorSeed(spec.seed)),
      held_(streams) {}

std::optional<Request> TraceSource::Next(size_t stream) {
  const std::lock_guard turn(turn_);
  if (next_ == spec_.requests.size()) return std::nullopt;
  const TraceRequest& request = spec_.requests[next_];
  const auto since = static_cast<int64_t>(static_cast<double>(request.arrival_ns) / spec_.speedup);
  if (loop_.duration.count() > 0 && since >= loop_.duration.count()) return std::nullopt;
  ++next_;
  std::unique_lock lock(mutex_);
  std::optional<PrefixCache::Placement> placement;
  released_.wait(lock, [&] { return (placement = target_.Place(request)).has_value(); });
  Held& held = held_[stream];
  held.placement = std::move(*placement);
  // This succeeds: the source cache is as large, and holds no more blocks than move to the target.
  held.local = source_.Allocate(held.placement.blocks.size()).value_or(std::vector<uint32_t>{});
  tokens_ += request.tokens;
  hit_tokens_ += held.placement.hit_tokens;
  return Request{.due_ns = loop_.start_ns + since,
                 .local = local_,
                 .remote = remote_,
                 .local_ids = held.local,
                 .remote_ids = held.placement.blocks};
}

void TraceSource::Done(size_t stream) {
  const std::lock_guard lock(mutex_);
  target_.Release(held_[stream].placement);
  source_.Free(held_[stream].local);
  held_[stream] = {};
  released_.notify_all();
}

}  // namespace kvxfer::cli
