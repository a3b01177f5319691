#include "src/cli/bench/timeline.h"

#include <algorithm>
#include <array>

namespace kvxfer::cli {
namespace {

constexpr int64_t kNotNotified = -1;
constexpr size_t kNumbers = 8;  // of one transfer in JSON

absl::Status Bad() { return absl::InvalidArgumentError("an incomplete timeline"); }

}  // namespace

Json ToJson(const Timeline& timeline) {
  Json json = Json::array();
  for (const TransferTimes& t : timeline) {
    json.push_back({t.peer, t.thread, t.bytes, t.due_ns, t.posted_ns, t.first_slice_ns,
                    t.notified_ns.value_or(kNotNotified), t.ended_ns});
  }
  return json;
}

absl::StatusOr<Timeline> TimelineFromJson(const Json& json) {
  if (!json.is_array() || json.size() > kMaxTimeline) return Bad();
  Timeline timeline;
  for (const Json& item : json) {
    if (!item.is_array() || item.size() != kNumbers) return Bad();
    std::array<int64_t, kNumbers> n{};
    for (size_t i = 0; i < kNumbers; ++i) {
      if (!item[i].is_number_integer()) return Bad();
      n[i] = item[i].get<int64_t>();
    }
    timeline.push_back({.peer = static_cast<uint32_t>(n[0]),
                        .thread = static_cast<uint32_t>(n[1]),
                        .bytes = static_cast<uint64_t>(n[2]),
                        .due_ns = n[3],
                        .posted_ns = n[4],
                        .first_slice_ns = n[5],
                        .notified_ns = n[6] == kNotNotified ? std::nullopt : std::optional(n[6]),
                        .ended_ns = n[7]});
  }
  return timeline;
}

TimelineRecorder::TimelineRecorder(uint64_t most) : kept_(std::min(most, kMaxTimeline)) {}

uint64_t TimelineRecorder::Begin() {
  // A load first, so that the threads of a long run do not write shared memory.
  if (begun_.load(std::memory_order_relaxed) >= kept_.size()) return 0;
  const uint64_t number = begun_.fetch_add(1, std::memory_order_relaxed) + 1;
  return number <= kept_.size() ? number : 0;
}

Timeline TimelineRecorder::Take(int64_t start_ns) {
  kept_.resize(std::min<size_t>(kept_.size(), begun_.load()));
  for (TransferTimes& times : kept_) {
    for (int64_t* time :
         {&times.due_ns, &times.posted_ns, &times.first_slice_ns, &times.ended_ns}) {
      *time -= start_ns;
    }
  }
  return std::move(kept_);
}

void AddArrivalTimes(const ArrivalTimes& arrivals, Timeline& timeline) {
  for (const auto& [number, after_ns] : arrivals) {
    if (number == 0 || number > timeline.size()) continue;
    TransferTimes& times = timeline[number - 1];
    times.notified_ns = times.posted_ns + static_cast<int64_t>(after_ns);
  }
}

}  // namespace kvxfer::cli
