#include "src/cli/bench_run.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/agent_setup.h"
#include "src/cli/peer_service.h"
#include "src/cli/scatter.h"
#include "src/cli/units.h"
#include "src/core/clock.h"

namespace kvxfer::cli {

absl::Status BenchRun::Prepare() {
  if (config_.op != "write" && config_.op != "read") {
    return absl::InvalidArgumentError("--op must be write or read, not " + config_.op);
  }
  if (config_.rounds == 0 || config_.rounds > 50'000) {
    return absl::InvalidArgumentError("--rounds must be from 1 to 50000");
  }
  const uint64_t largest =
      *std::max_element(config_.block_sizes.begin(), config_.block_sizes.end());
  if (largest > config_.total) {
    return absl::InvalidArgumentError(absl::StrCat("--total of ", FormatBytes(config_.total),
                                                   " holds no block of ", FormatBytes(largest)));
  }
  const absl::StatusOr<MemorySource> source = ParseMemorySource(config_.memory);
  if (!source.ok()) return source.status();
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(*source, config_.total);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(*memory);
  const absl::StatusOr<RegionId> region = agent_.RegisterMemory(memory_.span(), Access::kNone);
  if (!region.ok()) return region.status();
  // First so that the target knows us, later so that we know its region.
  if (absl::StatusOr<std::string> s = Introduce(channel_, agent_); !s.ok()) return s.status();
  const absl::StatusOr<Json> ready = channel_.Call(
      {{"type", "prepare"}, {"bytes", config_.total}, {"memory", config_.memory}}, config_.timeout);
  if (!ready.ok()) return ready.status();
  const absl::StatusOr<uint64_t> session = GetUint(*ready, "session");
  const absl::StatusOr<uint64_t> base = GetUint(*ready, "base");
  if (!session.ok()) return session.status();
  if (!base.ok()) return base.status();
  session_ = *session;
  remote_base_ = *base;
  absl::StatusOr<std::string> peer = Introduce(channel_, agent_);
  if (!peer.ok()) return peer.status();
  peer_ = std::move(*peer);
  return absl::OkStatus();
}

std::string BenchRun::path() const { return ChosenPath(agent_, peer_); }

BenchRun::Scatter BenchRun::MakeScatter(uint64_t block_bytes, uint32_t count) const {
  const auto base = reinterpret_cast<uint64_t>(memory_.bytes().data());
  Scatter scatter;
  scatter.local = {.base = base, .block_bytes = block_bytes, .stride = block_bytes, .count = count};
  scatter.remote = scatter.local;
  scatter.remote.base = remote_base_;
  scatter.local_ids = Permutation(count, InitiatorSeed(config_.seed));
  scatter.remote_ids = Permutation(count, TargetSeed(config_.seed));
  return scatter;
}

absl::StatusOr<BenchRow> BenchRun::Run(uint64_t block_bytes) {
  const uint64_t count = config_.total / block_bytes;
  if (count > UINT32_MAX) return absl::InvalidArgumentError("more than 2^32 blocks a round");
  const Scatter scatter = MakeScatter(block_bytes, static_cast<uint32_t>(count));
  if (absl::Status s = VerifiedRound(scatter); !s.ok()) return s;
  const absl::StatusOr<Remote> before = Report(1);
  if (!before.ok()) return before.status();

  const double cpu_before = CpuSeconds();
  std::vector<std::pair<int64_t, int64_t>> rounds;
  for (uint64_t i = 0; i < config_.rounds; ++i) {
    const int64_t start = MonotonicNanoseconds();
    const absl::StatusOr<int64_t> end = Round(scatter);
    if (!end.ok()) return end.status();
    rounds.emplace_back(start, *end);
  }
  const double cpu_after = CpuSeconds();
  const absl::StatusOr<Remote> after = Report(config_.rounds);
  if (!after.ok()) return after.status();

  std::vector<double> microseconds;
  for (size_t i = 0; i < rounds.size(); ++i) {
    const auto [start, done] = rounds[i];
    // One transfer at a time, so notification i is of round i.
    const int64_t end = after->same_clock ? std::max(done, after->notified_ns[i]) : done;
    microseconds.push_back(static_cast<double>(end - start) * 1e-3);
  }
  return BenchRow{.block_bytes = block_bytes,
                  .blocks = count,
                  .bytes = count * block_bytes,
                  .round_us = Summarize(std::move(microseconds)),
                  .local_cpu_seconds = cpu_after - cpu_before,
                  .remote_cpu_seconds = after->cpu_seconds - before->cpu_seconds};
}

absl::StatusOr<Json> BenchRun::Content(const char* type, const Scatter& scatter) {
  return channel_.Call({{"type", type},
                        {"block_bytes", scatter.local.block_bytes},
                        {"count", scatter.local.count},
                        {"seed", config_.seed}},
                       config_.timeout);
}

// The receiving side begins with zeros, so bytes that were right before cannot pass.
absl::Status BenchRun::VerifiedRound(const Scatter& scatter) {
  const std::span<std::byte> bytes = memory_.bytes();
  const uint64_t block_bytes = scatter.local.block_bytes;
  const bool write = config_.op == "write";
  if (write) {
    FillBlocks(bytes, block_bytes, scatter.local_ids, config_.seed);
  } else {
    std::memset(bytes.data(), 0, bytes.size());
  }
  if (absl::StatusOr<Json> s = Content(write ? "clear" : "fill", scatter); !s.ok()) {
    return s.status();
  }
  if (absl::StatusOr<int64_t> s = Round(scatter); !s.ok()) return s.status();
  if (write) return Content("check", scatter).status();
  return CheckBlocks(bytes, block_bytes, scatter.local_ids, config_.seed);
}

absl::StatusOr<int64_t> BenchRun::Round(const Scatter& scatter) {
  const PagedBlocks blocks{.local = {&scatter.local, 1},
                           .remote = {&scatter.remote, 1},
                           .local_ids = scatter.local_ids,
                           .remote_ids = scatter.remote_ids};
  TransferOptions options;
  options.notification = SessionNote{.session = session_, .sequence = sequence_++}.Encode();
  options.deadline = config_.timeout;
  const absl::StatusOr<Transfer> transfer = config_.op == "write"
                                                ? agent_.Write(peer_, blocks, options)
                                                : agent_.Read(peer_, blocks, options);
  if (!transfer.ok()) return transfer.status();
  if (absl::Status s = transfer->Wait(config_.timeout); !s.ok()) return s;
  return MonotonicNanoseconds();
}

// The target's application may be behind what the initiator already knows; waits for it.
absl::StatusOr<BenchRun::Remote> BenchRun::Report(size_t notifications) {
  Remote remote;
  for (const Time end = Now() + config_.timeout;;) {
    const absl::StatusOr<Json> report = channel_.Call({{"type", "report"}}, config_.timeout);
    if (!report.ok()) return report.status();
    const auto times = report->find("notified_ns");
    const auto cpu = report->find("cpu_seconds");
    if (times == report->end() || !times->is_array() || cpu == report->end() || !cpu->is_number()) {
      return absl::InvalidArgumentError("the target's report is not complete");
    }
    for (const Json& time : *times) {
      remote.notified_ns.push_back(time.is_number() ? time.get<int64_t>() : 0);
    }
    remote.cpu_seconds = cpu->get<double>();
    remote.same_clock = GetString(*report, "boot_id") == BootId();
    if (remote.notified_ns.size() == notifications) return remote;
    if (remote.notified_ns.size() > notifications || Now() > end) {
      return absl::DataLossError(absl::StrCat("the target was notified ", remote.notified_ns.size(),
                                              " times instead of ", notifications));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace kvxfer::cli
