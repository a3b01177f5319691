#include "src/cli/bench/case.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer::cli {
namespace {

template <typename Case>
auto CaseNumbers(Case& c) {
  return std::array{
      std::pair{"threads", &c.threads},           std::pair{"pieces", &c.pieces},
      std::pair{"block_bytes", &c.block_bytes},   std::pair{"request_blocks", &c.request_blocks},
      std::pair{"cache_blocks", &c.cache_blocks}, std::pair{"seed", &c.seed}};
}

template <typename Case>
auto Flags(Case& c) {
  return std::array{std::pair{"write", &c.write}, std::pair{"latency", &c.latency},
                    std::pair{"bidirectional", &c.bidirectional}};
}

template <typename Case>
auto Texts(Case& c) {
  return std::array{std::pair{"backend", &c.backend}, std::pair{"listen", &c.listen}};
}

template <typename Case>
auto Memories(Case& c) {
  return std::array{std::pair{"memory", &c.memory.here},
                    std::pair{"memory_target", &c.memory.there}};
}

}  // namespace

KvCacheShape BenchCase::Shape(uint64_t share, const MemoryChoice& of_side) const {
  const uint64_t blocks = std::max(cache_blocks, share * (bidirectional ? 2 : 1));
  return {.pieces = static_cast<uint32_t>(pieces),
          .block_bytes = block_bytes,
          .blocks = static_cast<uint32_t>(blocks),
          .memory = of_side};
}

absl::Status CheckCase(const BenchCase& c) {
  // The interface allows 2^32 ids, the address space 2^47 bytes.
  const unsigned __int128 ids =
      static_cast<unsigned __int128>(c.request_blocks) * c.streams() * (c.bidirectional ? 2 : 1);
  const unsigned __int128 blocks = std::max<unsigned __int128>(ids, c.cache_blocks);
  if (blocks == 0 || blocks > UINT32_MAX) {
    return absl::InvalidArgumentError(
        "a run must have from 1 to 2^32 - 1 blocks in each region; choose larger or fewer blocks");
  }
  const auto block = static_cast<unsigned __int128>(c.block_bytes);
  if (block * c.pieces * blocks > uint64_t{1} << 47) {
    return absl::InvalidArgumentError("a run cannot use more than 2^47 bytes of memory");
  }
  return absl::OkStatus();
}

Json ToJson(const BenchCase& bench) {
  Json json = {{"targets", bench.targets},
               {"timeout_ns", static_cast<uint64_t>(bench.timeout.count())}};
  for (const auto& [name, value] : CaseNumbers(bench)) json[name] = *value;
  for (const auto& [name, value] : Flags(bench)) json[name] = *value;
  for (const auto& [name, value] : Texts(bench)) json[name] = *value;
  for (const auto& [name, value] : Memories(bench)) json[name] = value->ToString();
  return json;
}

absl::StatusOr<BenchCase> BenchCaseFromJson(const Json& json) {
  BenchCase bench;
  for (const auto& [name, value] : CaseNumbers(bench)) {
    const absl::StatusOr<uint64_t> number = GetUint(json, name);
    if (!number.ok()) return number.status();
    *value = *number;
  }
  for (const auto& [name, value] : Flags(bench)) *value = json.value(name, Json()) == true;
  for (const auto& [name, value] : Texts(bench)) *value = GetString(json, name);
  for (const auto& [name, value] : Memories(bench)) {
    const absl::StatusOr<MemoryChoice> choice = ParseMemoryChoice(GetString(json, name));
    if (!choice.ok()) return choice.status();
    *value = *choice;
  }
  const absl::StatusOr<uint64_t> timeout = GetUint(json, "timeout_ns");
  if (!timeout.ok()) return timeout.status();
  bench.timeout = Duration(static_cast<int64_t>(*timeout));
  for (const Json& target : json.value("targets", Json::array())) {
    if (target.is_string()) bench.targets.push_back(target.get<std::string>());
  }
  if (absl::Status s = CheckCase(bench); !s.ok()) return s;
  return bench;
}

}  // namespace kvxfer::cli
