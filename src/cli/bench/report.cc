#include "src/cli/bench/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// The JSON fields with a single value, in the order of CSV columns.
constexpr std::array kColumns = {"workload",
                                 "backend",
                                 "op",
                                 "memory",
                                 "memory_target",
                                 "block_bytes",
                                 "blocks",
                                 "bytes",
                                 "requests",
                                 "seconds",
                                 "gb_per_s",
                                 "ops_per_s",
                                 "requests_per_s",
                                 "min_us",
                                 "mean_us",
                                 "p50_us",
                                 "p90_us",
                                 "p99_us",
                                 "p999_us",
                                 "max_us",
                                 "jitter",
                                 "notified_p50_us",
                                 "notified_p99_us",
                                 "cpu_s_per_gb_initiator",
                                 "cpu_s_per_gb_target",
                                 "register_ms",
                                 "first_transfer_us",
                                 "rss_bytes",
                                 "rss_bytes_target",
                                 "verified",
                                 "peers",
                                 "scheme",
                                 "threads",
                                 "bidirectional",
                                 "fairness",
                                 "target_requests_per_s",
                                 "arrivals",
                                 "peak_requests_per_s",
                                 "peak_gb_per_s",
                                 "device_copy_gbps",
                                 "device_scattered_gbps",
                                 "model",
                                 "tp",
                                 "tokens",
                                 "prompt_tokens",
                                 "hit_tokens",
                                 "path"};

double PerGb(double seconds, const Tally& tally) {
  return tally.bytes > 0 ? seconds / (static_cast<double>(tally.bytes) * 1e-9) : 0;
}

std::string DateNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts)};
}

Json CdfJson(const LatencyHistogram& times) {
  Json json = Json::array();
  for (const CdfPoint& point : times.Cdf()) {
    json.push_back({point.us, std::round(point.part * 1e6) / 1e6});
  }
  return json;
}

double Microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

// In the order of posting, across all processes.
Json TimelineJson(Timeline timeline) {
  std::ranges::stable_sort(timeline, {}, &TransferTimes::posted_ns);
  Json json = Json::array();
  for (const TransferTimes& times : timeline) {
    json.push_back({{"peer", times.peer},
                    {"thread", times.thread},
                    {"bytes", times.bytes},
                    {"due_us", Microseconds(times.due_ns)},
                    {"posted_us", Microseconds(times.posted_ns)},
                    {"first_slice_us", Microseconds(times.first_slice_ns)},
                    {"ended_us", Microseconds(times.ended_ns)}});
    if (times.notified_ns) json.back()["notified_us"] = Microseconds(*times.notified_ns);
  }
  return json;
}

Json MachineJson() {
  utsname system{};
  uname(&system);
  std::string model = "unknown";
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    if (!line.starts_with("model name")) continue;
    model = line.substr(std::min(line.find(':') + 2, line.size()));
    break;
  }
  return {{"host", system.nodename},
          {"cpu", model},
          {"cpus", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                               static_cast<uint64_t>(sysconf(_SC_PAGESIZE))},
          {"kernel", system.release}};
}

// Adds the fields that only some kinds of run have.
void AddOfKind(const BenchPlan& plan, const BenchRow& row, Json& json) {
  if (plan.peers() > 1) {
    json["scheme"] = plan.workers.initiators > 1 ? "manytoone" : "onetomany";
    json["fairness"] = row.fairness();
    Json rates = Json::array();
    for (const Tally& peer : row.ran.peers) rates.push_back(peer.gb_per_s());
    json["peer_gb_per_s"] = std::move(rates);
  }
  if (row.target_rate > 0) {
    json["target_requests_per_s"] = row.target_rate;
    json["arrivals"] = plan.loop.poisson ? "poisson" : "constant";
  }
  if (row.peak) {
    json["peak_gb_per_s"] = row.peak->gb_per_s();
    json["peak_requests_per_s"] = static_cast<double>(row.peak->requests) /
                                  (static_cast<double>(row.peak->elapsed_ns) * 1e-9);
  }
  if (row.device.whole > 0) json["device_copy_gbps"] = row.device.whole;
  if (row.device.scattered > 0) json["device_scattered_gbps"] = row.device.scattered;
  if (!plan.model.empty()) {
    json["model"] = plan.model;
    json["tp"] = plan.tp;
  }
  if (plan.tokens > 0) json["tokens"] = plan.tokens;
  if (plan.trace) {
    json["prompt_tokens"] = row.ran.tokens;
    json["hit_tokens"] = row.ran.hit_tokens;
  }
  if (row.ran.notified.count() > 0) {
    json["notified_p50_us"] = row.ran.notified.Percentile(0.5);
    json["notified_p99_us"] = row.ran.notified.Percentile(0.99);
  }
  if (!row.ran.timeline.empty()) json["timeline"] = TimelineJson(row.ran.timeline);
}

Json RowJson(const BenchPlan& plan, const BenchRow& row) {
  const Tally& all = row.ran.all;
  const LatencyHistogram& times = row.ran.times;
  const double p50 = times.Percentile(0.5);
  const uint64_t requests = std::max<uint64_t>(all.requests, 1);
  Json json = {{"workload", ToString(plan.workload)},
               {"backend", row.opened.backend},
               {"op", row.bench.write ? "write" : "read"},
               {"memory", row.bench.memory.here.ToString()},
               {"memory_target", row.bench.memory.there.ToString()},
               {"block_bytes", row.bench.block_bytes},
               {"blocks", all.blocks / requests},
               {"bytes", all.bytes / requests},
               {"requests", all.requests},
               {"seconds", static_cast<double>(all.elapsed_ns) * 1e-9},
               {"gb_per_s", row.gb_per_s()},
               {"ops_per_s", row.per_second(all.blocks)},
               {"requests_per_s", row.per_second(all.requests)},
               {"min_us", times.min()},
               {"mean_us", times.mean()},
               {"p50_us", p50},
               {"p90_us", times.Percentile(0.9)},
               {"p99_us", times.Percentile(0.99)},
               {"p999_us", times.Percentile(0.999)},
               {"max_us", times.max()},
               {"latency_cdf", CdfJson(times)},
               {"jitter", p50 > 0 ? times.Percentile(0.99) / p50 : 0},
               {"cpu_s_per_gb_initiator", PerGb(row.ran.cpu_seconds, all)},
               {"cpu_s_per_gb_target", PerGb(row.cpu_seconds_at_targets(), all)},
               {"register_ms", row.opened.register_ms},
               {"first_transfer_us", row.opened.first_transfer_us},
               {"rss_bytes", row.ran.rss_bytes},
               {"rss_bytes_target", row.rss_bytes_at_targets()},
               {"verified", true},  // a run whose first round is wrong gives no row
               {"peers", plan.peers()},
               {"threads", row.bench.threads},
               {"bidirectional", row.bench.bidirectional},
               {"path", row.opened.path}};
  AddOfKind(plan, row, json);
  return json;
}

std::string CsvCell(const Json& row, const char* column) {
  const auto it = row.find(column);
  if (it == row.end()) return "";
  if (!it->is_string()) return it->dump();
  std::string quoted = "\"";
  for (char c : it->get<std::string>()) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + "\"";
}

}  // namespace

double BenchRow::per_second(uint64_t count) const {
  if (ran.all.elapsed_ns <= 0) return 0;
  return static_cast<double>(count) / (static_cast<double>(ran.all.elapsed_ns) * 1e-9);
}

double BenchRow::cpu_seconds_at_targets() const {
  double sum = 0;
  for (const auto& [process, use] : ran.targets) sum += use.cpu_after - use.cpu_before;
  return sum;
}

uint64_t BenchRow::rss_bytes_at_targets() const {
  uint64_t sum = 0;
  for (const auto& [process, use] : ran.targets) sum += use.rss_bytes;
  return sum;
}

double BenchRow::fairness() const {
  double least = 0;
  double most = 0;
  for (size_t i = 0; i < ran.peers.size(); ++i) {
    const double rate = ran.peers[i].gb_per_s();
    least = i == 0 ? rate : std::min(least, rate);
    most = std::max(most, rate);
  }
  return most > 0 ? least / most : 0;
}

Json ReportJson(const BenchPlan& plan, const std::vector<BenchRow>& rows) {
  Json results = Json::array();
  for (const BenchRow& row : rows) results.push_back(RowJson(plan, row));
  return {{"machine", MachineJson()},
          {"version", KVXFER_VERSION},
          {"date", DateNow()},
          {"results", std::move(results)}};
}

std::string ReportCsv(const BenchPlan& plan, const std::vector<BenchRow>& rows) {
  std::string text;
  for (const char* column : kColumns) absl::StrAppend(&text, text.empty() ? "" : ",", column);
  for (const BenchRow& row : rows) {
    const Json json = RowJson(plan, row);
    std::string line;
    for (const char* column : kColumns) {
      absl::StrAppend(&line, column == kColumns.front() ? "" : ",", CsvCell(json, column));
    }
    absl::StrAppend(&text, "\n", line);
  }
  return text;
}

}  // namespace kvxfer::cli
