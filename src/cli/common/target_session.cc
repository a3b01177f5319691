#include "src/cli/common/target_session.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/agent_setup.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// Skips anything that is not a pair of numbers: only a timeline needs these.
ArrivalTimes ParseArrivalTimes(const Json& json) {
  ArrivalTimes arrivals;
  for (const Json& pair : json) {
    if (pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
        pair[1].is_number_unsigned() && pair[1].get<uint64_t>() <= INT64_MAX) {
      arrivals.emplace_back(pair[0].get<uint64_t>(), pair[1].get<uint64_t>());
    }
  }
  return arrivals;
}

absl::StatusOr<TargetReport> ParseReport(const Json& json) {
  const absl::StatusOr<uint64_t> rss = GetUint(json, "rss_bytes");
  const absl::StatusOr<uint64_t> notifications = GetUint(json, "notifications");
  const auto cpu = json.find("cpu_seconds");
  const auto notified = json.find("notified");
  if (!rss.ok() || !notifications.ok() || cpu == json.end() || !cpu->is_number() ||
      notified == json.end()) {
    return absl::InvalidArgumentError("the target's report is not complete");
  }
  absl::StatusOr<LatencyHistogram> histogram = LatencyHistogram::FromJson(*notified);
  if (!histogram.ok()) return histogram.status();
  return TargetReport{.process = GetString(json, "process"),
                      .cpu_seconds = cpu->get<double>(),
                      .rss_bytes = *rss,
                      .notifications = *notifications,
                      .notified = std::move(*histogram),
                      .arrivals = ParseArrivalTimes(json.value("arrivals", Json::array()))};
}

}  // namespace

absl::StatusOr<TargetSession> TargetSession::Open(Channel& channel, Agent& agent,
                                                  const SessionRequest& request, Duration timeout) {
  // Now so that the service knows this agent; again below, so that this agent knows its regions.
  if (absl::StatusOr<std::string> s = Introduce(channel, agent); !s.ok()) return s.status();
  Json prepare = {{"type", "prepare"},
                  {"pieces", request.shape.pieces},
                  {"block_bytes", request.shape.block_bytes},
                  {"blocks", request.shape.blocks},
                  {"memory", request.shape.memory.ToString()}};
  if (!request.answer.empty()) prepare["answer"] = ToJson(request.answer);
  if (!request.drive.empty()) prepare["drive"] = ToJson(request.drive);
  const absl::StatusOr<Json> ready = channel.Call(prepare, timeout);
  if (!ready.ok()) return ready.status();
  const absl::StatusOr<uint64_t> id = GetUint(*ready, "session");
  absl::StatusOr<std::vector<PagedRegion>> regions = GetRegions(*ready, "regions");
  if (!id.ok()) return id.status();
  if (!regions.ok()) return regions.status();
  if (regions->size() != request.shape.pieces) {
    return absl::InternalError("the target prepared other regions than requested");
  }
  absl::StatusOr<std::string> peer = Introduce(channel, agent);
  if (!peer.ok()) return peer.status();
  TargetSession session;
  session.channel_ = &channel;
  session.peer_ = std::move(*peer);
  session.id_ = *id;
  session.regions_ = std::move(*regions);
  return session;
}

absl::StatusOr<TargetReport> TargetSession::Report(uint64_t notifications, Duration timeout) const {
  TargetReport sum;
  for (const Time end = Now() + timeout;;) {
    const absl::StatusOr<Json> answer = channel_->Call({{"type", "report"}}, timeout);
    if (!answer.ok()) return answer.status();
    absl::StatusOr<TargetReport> report = ParseReport(*answer);
    if (!report.ok()) return report.status();
    report->notifications += sum.notifications;
    report->notified.Merge(sum.notified);
    report->arrivals.insert(report->arrivals.end(), sum.arrivals.begin(), sum.arrivals.end());
    sum = std::move(*report);
    if (sum.notifications == notifications) return sum;
    if (sum.notifications > notifications || Now() > end) {
      return absl::DataLossError(absl::StrCat("the target was notified ", sum.notifications,
                                              " times instead of ", notifications));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace kvxfer::cli
