// The output of `kvxfer demo` with two instances.

#include <cstdio>

#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/shard.h"

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

ReportRow ShareRow(const DemoGroupRun& run, size_t i) {
  const DemoShare& share = run.shares[i];
  ReportRow row;
  row.Count("decode", share.decode);
  row.Count("prefill", share.prefill);
  row.Add("heads", share.heads.count, HeadsText(share.heads));
  row.Count("runs", share.runs);
  row.Add("run_bytes", share.run_bytes, FormatBytes(share.run_bytes));
  row.Add("path", run.paths[i]);
  row.json["first_head"] = share.heads.first;
  return row;
}

ReportRow RankRow(const DemoGroupRun& run, size_t i) {
  const uint64_t bytes = RankBytes(run.decode[i]);
  ReportRow row;
  row.cells.push_back(std::to_string(i));
  row.Count("verified", run.verified[i]);
  row.Add("bytes", bytes, FormatFixed(static_cast<double>(bytes) / (1 << 20), 1));
  row.Number("gb_per_s", GbPerSecond(bytes, run.wire_seconds[i]), 2);
  return row;
}

void PrintRows(const DemoGroupRun& run, size_t count, std::vector<std::string> header,
               ReportRow (*row)(const DemoGroupRun& run, size_t i)) {
  TextGrid grid(std::vector<Align>(std::min<size_t>(header.size(), 5), Align::kRight));
  grid.Add(std::move(header));
  for (size_t i = 0; i < count; ++i) grid.Add(row(run, i).cells);
  std::puts(grid.ToString().c_str());
}

Json RowsJson(const DemoGroupRun& run, size_t count,
              ReportRow (*row)(const DemoGroupRun& run, size_t i)) {
  Json list = Json::array();
  for (size_t i = 0; i < count; ++i) list.push_back(row(run, i).json);
  return list;
}

Json SideJson(const DemoShard& shard) {
  return {{"tp", shard.config.tp},
          {"block_tokens", shard.config.block_tokens},
          {"layout", shard.layout},
          {"cache_blocks", CacheShapeOf(shard).value_or(KvCacheShape()).blocks}};
}

}  // namespace

void PrintGroupTable(const DemoGroupRun& run) {
  PrintSides(run);
  PrintRows(run, run.shares.size(),
            {"decode rank", "from prefill rank", "heads", "runs/request", "run", "path"}, ShareRow);
  PrintRows(run, run.decode.size(), {"decode rank", "requests verified", "MiB", "GB/s"}, RankRow);
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
      {"shares", RowsJson(run, run.shares.size(), ShareRow)},
      {"ranks", RowsJson(run, run.decode.size(), RankRow)},
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
