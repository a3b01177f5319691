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
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace kvxfer::cli {
namespace {

// The fields with a single value, in the order of CSV columns; null: a run of this kind has none.
using Row = std::vector<std::pair<const char*, Json>>;

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

Json If(bool has, const Json& value) { return has ? value : Json(); }

Row MovedFields(const BenchPlan& plan, const BenchRow& row) {
  const Tally& all = row.ran.all;
  const uint64_t requests = std::max<uint64_t>(all.requests, 1);
  return {{"workload", ToString(plan.workload)},
          {"backend", row.opened.backend},
          {"op", row.bench.write ? "write" : "read"},
          {"answer", If(row.bench.latency, row.bench.by_message ? "message" : "write")},
          {"memory", row.bench.memory.here.ToString()},
          {"memory_target", row.bench.memory.there.ToString()},
          {"block_bytes", row.bench.block_bytes},
          {"blocks", all.blocks / requests},
          {"bytes", all.bytes / requests},
          {"requests", all.requests},
          {"seconds", static_cast<double>(all.elapsed_ns) * 1e-9},
          {"gb_per_s", all.gb_per_s()},
          {"ops_per_s", all.per_second(all.blocks)},
          {"requests_per_s", all.per_second(all.requests)}};
}

Row TimeFields(const BenchPlan& /*plan*/, const BenchRow& row) {
  const LatencyHistogram& times = row.ran.times;
  const LatencyHistogram& notified = row.ran.notified;
  const double p50 = times.Percentile(0.5);
  return {{"min_us", times.min()},
          {"mean_us", times.mean()},
          {"p50_us", p50},
          {"p90_us", times.Percentile(0.9)},
          {"p99_us", times.Percentile(0.99)},
          {"p999_us", times.Percentile(0.999)},
          {"max_us", times.max()},
          {"jitter", p50 > 0 ? times.Percentile(0.99) / p50 : 0},
          {"notified_p50_us", If(notified.count() > 0, notified.Percentile(0.5))},
          {"notified_p99_us", If(notified.count() > 0, notified.Percentile(0.99))}};
}

Row CostFields(const BenchPlan& /*plan*/, const BenchRow& row) {
  return {{"cpu_s_per_gb_initiator", PerGb(row.ran.cpu_seconds, row.ran.all)},
          {"cpu_s_per_gb_target", PerGb(row.cpu_seconds_at_targets(), row.ran.all)},
          {"register_ms", row.opened.register_ms},
          {"first_transfer_us", row.opened.first_transfer_us},
          {"rss_bytes", row.ran.rss_bytes},
          {"rss_bytes_target", row.rss_bytes_at_targets()},
          {"verified", true}};  // a run whose first round is wrong gives no row
}

Row LoadFields(const BenchPlan& plan, const BenchRow& row) {
  const bool many = plan.peers() > 1;
  const bool open = row.target_rate > 0;
  const Tally peak = row.peak.value_or(Tally());
  return {{"peers", plan.peers()},
          {"scheme", If(many, plan.workers.initiators > 1 ? "manytoone" : "onetomany")},
          {"threads", row.bench.threads},
          {"bidirectional", row.bench.bidirectional},
          {"fairness", If(many, row.fairness())},
          {"target_requests_per_s", If(open, row.target_rate)},
          {"arrivals", If(open, plan.loop.poisson ? "poisson" : "constant")},
          {"peak_requests_per_s", If(row.peak.has_value(), peak.per_second(peak.requests))},
          {"peak_gb_per_s", If(row.peak.has_value(), peak.gb_per_s())},
          {"device_copy_gbps", If(row.device.whole > 0, row.device.whole)},
          {"device_scattered_gbps", If(row.device.scattered > 0, row.device.scattered)},
          {"model", If(!plan.model.empty(), plan.model)},
          {"tp", If(!plan.model.empty(), plan.tp)},
          {"tokens", If(plan.tokens > 0, plan.tokens)},
          {"prompt_tokens", If(plan.trace.has_value(), row.ran.tokens)},
          {"hit_tokens", If(plan.trace.has_value(), row.ran.hit_tokens)},
          {"path", row.opened.path}};
}

Row FieldsOf(const BenchPlan& plan, const BenchRow& row) {
  Row fields;
  for (const auto part : {&MovedFields, &TimeFields, &CostFields, &LoadFields}) {
    std::ranges::move(part(plan, row), std::back_inserter(fields));
  }
  return fields;
}

Json RowJson(const BenchPlan& plan, const BenchRow& row) {
  Json json = {{"latency_cdf", CdfJson(row.ran.times)}};
  for (const auto& [name, value] : FieldsOf(plan, row)) {
    if (!value.is_null()) json[name] = value;
  }
  if (plan.peers() > 1) {
    Json& rates = json["peer_gb_per_s"] = Json::array();
    for (const Tally& peer : row.ran.targets) rates.push_back(peer.gb_per_s());
  }
  if (!row.ran.timeline.empty()) json["timeline"] = TimelineJson(row.ran.timeline);
  return json;
}

std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  return absl::StrCat("\"", absl::StrReplaceAll(value.get<std::string>(), {{"\"", "\"\""}}), "\"");
}

}  // namespace

double BenchRow::cpu_seconds_at_targets() const {
  double sum = 0;
  for (const auto& [process, use] : ran.processes) sum += use.cpu_after - use.cpu_before;
  return sum;
}

uint64_t BenchRow::rss_bytes_at_targets() const {
  uint64_t sum = 0;
  for (const auto& [process, use] : ran.processes) sum += use.rss_bytes;
  return sum;
}

double BenchRow::fairness() const {
  double least = 0;
  double most = 0;
  for (size_t i = 0; i < ran.targets.size(); ++i) {
    const double rate = ran.targets[i].gb_per_s();
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
  std::string names;
  std::string lines;
  for (const BenchRow& row : rows) {
    std::vector<std::string> titles;
    std::vector<std::string> cells;
    for (const auto& [name, value] : FieldsOf(plan, row)) {
      titles.emplace_back(name);
      cells.push_back(CsvCell(value));
    }
    names = absl::StrJoin(titles, ",");
    absl::StrAppend(&lines, "\n", absl::StrJoin(cells, ","));
  }
  return names + lines;
}

}  // namespace kvxfer::cli
