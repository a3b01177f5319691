#include "src/cli/bench/group.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "src/cli/common/stats.h"

namespace kvxfer::cli {
namespace {

// Several initiators may report on the same process, each from its own start to its own end.
void AddUse(const std::string& process, const ProcessUse& use,
            std::map<std::string, ProcessUse>& uses) {
  const auto [it, fresh] = uses.try_emplace(process, use);
  if (fresh) return;
  it->second.cpu_before = std::min(it->second.cpu_before, use.cpu_before);
  it->second.cpu_after = std::max(it->second.cpu_after, use.cpu_after);
  it->second.rss_bytes = std::max(it->second.rss_bytes, use.rss_bytes);
}

}  // namespace

void Opened::Merge(const Opened& other) {
  if (path.empty()) {
    path = other.path;
    backend = other.backend;
  }
  register_ms = std::max(register_ms, other.register_ms);
  first_transfer_us = std::max(first_transfer_us, other.first_transfer_us);
}

void Ran::Merge(const Ran& other) {
  all.Merge(other.all);
  peers.insert(peers.end(), other.peers.begin(), other.peers.end());
  times.Merge(other.times);
  notified.Merge(other.notified);
  timeline.insert(timeline.end(), other.timeline.begin(), other.timeline.end());
  cpu_seconds += other.cpu_seconds;
  rss_bytes += other.rss_bytes;
  tokens += other.tokens;
  hit_tokens += other.hit_tokens;
  for (const auto& [process, use] : other.targets) AddUse(process, use, targets);
}

Json ToJson(const Opened& opened) {
  return {{"backend", opened.backend},
          {"path", opened.path},
          {"register_ms", opened.register_ms},
          {"first_transfer_us", opened.first_transfer_us}};
}

absl::StatusOr<Opened> OpenedFromJson(const Json& json) {
  return Opened{.backend = GetString(json, "backend"),
                .path = GetString(json, "path"),
                .register_ms = GetNumber(json, "register_ms"),
                .first_transfer_us = GetNumber(json, "first_transfer_us")};
}

Json ToJson(const Ran& ran) {
  Json targets = Json::object();
  for (const auto& [process, use] : ran.targets) {
    targets[process] = {
        {"before", use.cpu_before}, {"after", use.cpu_after}, {"rss_bytes", use.rss_bytes}};
  }
  // A LoopResult whose `targets` hold the tallies of the initiators.
  const Json result = ToJson(LoopResult{.targets = ran.peers,
                                        .times = ran.times,
                                        .notified = ran.notified,
                                        .timeline = ran.timeline});
  return {{"result", result},
          {"cpu_seconds", ran.cpu_seconds},
          {"rss_bytes", ran.rss_bytes},
          {"targets", std::move(targets)}};
}

absl::StatusOr<Ran> RanFromJson(const Json& json) {
  absl::StatusOr<LoopResult> result = LoopResultFromJson(json.value("result", Json::object()));
  if (!result.ok()) return result.status();
  const absl::StatusOr<uint64_t> rss = GetUint(json, "rss_bytes");
  if (!rss.ok()) return rss.status();
  Ran ran{.all = result->all,
          .peers = std::move(result->targets),
          .times = std::move(result->times),
          .notified = std::move(result->notified),
          .timeline = std::move(result->timeline),
          .cpu_seconds = GetNumber(json, "cpu_seconds"),
          .rss_bytes = *rss};
  const Json targets = json.value("targets", Json::object());
  for (const auto& [process, use] : targets.items()) {
    ran.targets[process] = {.cpu_before = GetNumber(use, "before"),
                            .cpu_after = GetNumber(use, "after"),
                            .rss_bytes = GetUint(use, "rss_bytes").value_or(0)};
  }
  return ran;
}

LoopSpec ShareOf(const LoopSpec& whole, uint32_t index, uint32_t total) {
  LoopSpec share = whole;
  share.requests = whole.requests / total + (index < whole.requests % total ? 1 : 0);
  share.rate = whole.rate / total;
  share.timeline = whole.timeline / total + (index < whole.timeline % total ? 1 : 0);
  share.phase = static_cast<double>(index) / total;
  share.seed = whole.seed + index;
  return share;
}

absl::StatusOr<Opened> InitiatorGroup::Open(const BenchCase& bench, uint32_t first,
                                            uint32_t count) {
  Close();
  first_ = first;
  Opened opened;
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<std::unique_ptr<BenchInitiator>> initiator =
        BenchInitiator::Open(bench, first + i);
    if (!initiator.ok()) return initiator.status();
    // One after the other, so that nothing else of this process disturbs the first transfer's time.
    if (absl::Status s = (*initiator)->Verify(); !s.ok()) return s;
    opened.Merge({.backend = (*initiator)->backend(),
                  .path = (*initiator)->path(),
                  .register_ms = (*initiator)->register_ms(),
                  .first_transfer_us = (*initiator)->first_transfer_us()});
    initiators_.push_back(std::move(*initiator));
  }
  return opened;
}

absl::StatusOr<Ran> InitiatorGroup::Run(const LoopSpec& whole, uint32_t total,
                                        const TraceSpec* trace, std::atomic<uint64_t>* moved) {
  std::optional<TraceSource> source;
  if (trace != nullptr) {
    source.emplace(*trace, whole, initiators_[0]->cache().regions(), initiators_[0]->link().remote,
                   initiators_[0]->threads());
  }
  const double cpu_before = CpuSeconds();
  std::vector<absl::StatusOr<BenchInitiator::Ran>> parts(initiators_.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < initiators_.size(); ++i) {
      threads.emplace_back([&, i] {
        const LoopSpec share = ShareOf(whole, first_ + static_cast<uint32_t>(i), total);
        parts[i] = initiators_[i]->Run(share, source ? &*source : nullptr, moved);
      });
    }
  }
  Ran ran{.cpu_seconds = CpuSeconds() - cpu_before, .rss_bytes = RssBytes()};
  for (absl::StatusOr<BenchInitiator::Ran>& part : parts) {
    if (!part.ok()) return part.status();
    ran.all.Merge(part->result.all);
    ran.times.Merge(part->result.times);
    ran.notified.Merge(part->result.notified);
    if (total == 1) {
      ran.peers = part->result.targets;
    } else {
      ran.peers.push_back(part->result.all);
      const auto number = first_ + static_cast<uint32_t>(&part - parts.data());
      for (TransferTimes& times : part->result.timeline) times.peer = number;
    }
    ran.timeline.insert(ran.timeline.end(), part->result.timeline.begin(),
                        part->result.timeline.end());
    for (size_t i = 0; i < part->after.size(); ++i) {
      AddUse(part->after[i].process,
             {.cpu_before = part->before[i].cpu_seconds,
              .cpu_after = part->after[i].cpu_seconds,
              .rss_bytes = part->after[i].rss_bytes},
             ran.targets);
    }
  }
  if (source) {
    ran.tokens = source->tokens();
    ran.hit_tokens = source->hit_tokens();
  }
  return ran;
}

}  // namespace kvxfer::cli
