// The output of `kvxfer demo` with two instances.

#include <cstdio>
#include <string>
#include <utility>

#include "src/cli/common/text_grid.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/group.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

using Align = TextGrid::Align;

std::string HeadsText(const KvHeads& heads) {
  if (heads.count == 1) return std::to_string(heads.first);
  return absl::StrCat(heads.first, "-", heads.first + heads.count - 1);
}

uint64_t RankBytes(const DemoShard& shard) { return shard.config.requests * shard.request_bytes(); }

void PrintSides(const DemoGroupRun& run) {
  const DemoConfig& config = run.prefill.front().config;
  const KvModel& model = config.model;
  const std::string heads = model.fused
                                ? absl::StrCat("one latent head of ", model.fused_width)
                                : absl::StrCat(model.kv_heads, " KV heads of ", model.head_size);
  std::printf("%s: %u layers, %s; %lu requests of %lu tokens\n\n", model.name.c_str(), model.layers,
              heads.c_str(), config.requests, config.tokens);
  TextGrid grid({Align::kLeft, Align::kRight, Align::kRight, Align::kLeft, Align::kRight});
  grid.Add({"side", "TP", "block tokens", "layout", "cache per rank"});
  for (const DemoShard& shard : {run.prefill.front(), run.decode.front()}) {
    const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
    grid.Add({shard.side, std::to_string(shard.config.tp),
              std::to_string(shard.config.block_tokens), shard.layout,
              shape.ok() ? FormatBytes(shape->bytes()) : ""});
  }
  std::puts(grid.ToString().c_str());
}

void PrintShares(const DemoGroupRun& run) {
  TextGrid grid({Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  grid.Add({"decode rank", "from prefill rank", "heads", "runs/request", "run", "path"});
  for (size_t i = 0; i < run.shares.size(); ++i) {
    const DemoShare& share = run.shares[i];
    grid.Add({std::to_string(share.decode), std::to_string(share.prefill), HeadsText(share.heads),
              std::to_string(share.runs), FormatBytes(share.run_bytes), run.paths[i]});
  }
  std::puts(grid.ToString().c_str());
}

Json SideJson(const DemoShard& shard) {
  return {{"tp", shard.config.tp},
          {"block_tokens", shard.config.block_tokens},
          {"layout", shard.layout},
          {"cache_blocks", CacheShapeOf(shard).value_or(KvCacheShape()).blocks}};
}

Json SharesJson(const DemoGroupRun& run) {
  Json list = Json::array();
  for (size_t i = 0; i < run.shares.size(); ++i) {
    const DemoShare& share = run.shares[i];
    list.push_back({{"prefill", share.prefill},
                    {"decode", share.decode},
                    {"first_head", share.heads.first},
                    {"heads", share.heads.count},
                    {"runs", share.runs},
                    {"run_bytes", share.run_bytes},
                    {"path", run.paths[i]}});
  }
  return list;
}

Json RanksJson(const DemoGroupRun& run) {
  Json list = Json::array();
  for (size_t i = 0; i < run.decode.size(); ++i) {
    const uint64_t bytes = RankBytes(run.decode[i]);
    list.push_back({{"verified", run.verified[i]},
                    {"bytes", bytes},
                    {"gb_per_s", GbPerSecond(bytes, run.wire_seconds[i])}});
  }
  return list;
}

}  // namespace

void PrintGroupTable(const DemoGroupRun& run) {
  PrintSides(run);
  PrintShares(run);
  TextGrid grid({Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  grid.Add({"decode rank", "requests verified", "MiB", "GB/s"});
  for (size_t i = 0; i < run.decode.size(); ++i) {
    const uint64_t bytes = RankBytes(run.decode[i]);
    grid.Add({std::to_string(i), std::to_string(run.verified[i]),
              FormatFixed(static_cast<double>(bytes) / (1 << 20), 1),
              FormatFixed(GbPerSecond(bytes, run.wire_seconds[i]), 2)});
  }
  std::puts(grid.ToString().c_str());
  std::printf("%s in %.2f s: %.2f GB/s with making and checking content, %.2f CPU seconds\n",
              FormatBytes(run.bytes()).c_str(), run.seconds, GbPerSecond(run.bytes(), run.seconds),
              run.cpu_seconds);
  std::printf("unused blocks and guard zones %s\n", run.guards.ok() ? "untouched" : "WRITTEN");
  std::printf("%zu of %zu requests verified on %zu decode rank%s\n", run.CountVerified(),
              run.errors.size(), run.decode.size(), run.decode.size() == 1 ? "" : "s");
}

void PrintGroupJson(const DemoGroupRun& run) {
  const Json report = {
      {"ok", OutcomeOf(run).ok()},
      {"model", run.prefill.front().config.model.name},
      {"requests", run.errors.size()},
      {"tokens", run.prefill.front().config.tokens},
      {"prefill", SideJson(run.prefill.front())},
      {"decode", SideJson(run.decode.front())},
      {"shares", SharesJson(run)},
      {"ranks", RanksJson(run)},
      {"verified", run.CountVerified()},
      {"errors", run.errors},
      {"untouched", run.guards.ok() ? "intact" : std::string(run.guards.message())},
      {"bytes", run.bytes()},
      {"seconds", run.seconds},
      {"gb_per_s", GbPerSecond(run.bytes(), run.seconds)},
      {"cpu_seconds", run.cpu_seconds}};
  std::puts(DumpJson(report, 2).c_str());
}

absl::Status OutcomeOf(const DemoGroupRun& run) {
  for (const std::string& error : run.errors) {
    if (!error.empty()) return absl::DataLossError("verification failed: " + error);
  }
  return run.guards;
}

}  // namespace kvxfer::cli
