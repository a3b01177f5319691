#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// Round trips have no blocks to choose: only their size counts.
class RoundTripSource : public RequestSource {
 public:
  RoundTripSource(const KvCache& cache, const LoopSpec& spec) : cache_(cache), schedule_(spec, 1) {}
  std::optional<Request> Next(size_t stream) override {
    const std::optional<int64_t> due = schedule_.Next(stream);
    if (!due) return std::nullopt;
    return Request{.due_ns = *due, .local = cache_.regions(), .local_ids = {&kBlock, 1}};
  }

 private:
  static constexpr uint32_t kBlock = 0;
  const KvCache& cache_;
  Schedule schedule_;
};

}  // namespace

absl::Status BrokenOff(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
  return absl::AbortedError(absl::StrCat("the run broke off: ", status.message()));
}

absl::StatusOr<std::unique_ptr<BenchInitiator>> BenchInitiator::Open(const BenchCase& bench,
                                                                     uint32_t index) {
  std::unique_ptr<BenchInitiator> initiator(new BenchInitiator(bench, index));
  if (absl::Status s = initiator->OpenAgent(); !s.ok()) return s;
  if (absl::Status s = initiator->OpenSessions(); !s.ok()) return s;
  return initiator;
}

BenchInitiator::~BenchInitiator() {
  if (agent_ != nullptr) agent_->OnNotification({});
}

absl::Status BenchInitiator::OpenAgent() {
  for (const std::string& target : bench_.targets) {
    absl::StatusOr<Channel> channel = ConnectToServer(target);
    if (!channel.ok()) return channel.status();
    channels_.push_back(std::move(*channel));
  }
  auto agent = MakeAgent({.role = "bench",
                          .backends = bench_.backend,
                          .listen = bench_.listen,
                          .default_listen = LocalHost(channels_.front()),
                          .own_port = index_ > 0,
                          .gpu_memory = bench_.memory.here.cuda(),
                          .fault_seed = bench_.seed + index_});
  // The user named an address that this host cannot listen on.
  if (absl::IsFailedPrecondition(agent.status()) && !bench_.listen.empty()) {
    return Invalid("--listen ", bench_.listen, ": ", agent.status().message());
  }
  if (!agent.ok()) return agent.status();
  agent_ = std::move(*agent);
  return absl::OkStatus();
}

absl::Status BenchInitiator::OpenSessions() {
  if (bench_.latency) {
    auto trip = RoundTrip::Open(channels_.front(), *agent_, cache_, bench_.block_bytes,
                                bench_.memory, bench_.timeout, &register_ms_);
    if (!trip.ok()) return trip.status();
    sessions_.push_back(trip->session());
    trip_ = std::move(*trip);
    return absl::OkStatus();
  }
  if (absl::Status s = Into(cache_, KvCache::Create(bench_.initiator_shape())); !s.ok()) return s;
  const Time before = Now();
  const Access access = bench_.bidirectional ? Access::kReadWrite : Access::kNone;
  if (auto s = cache_.RegisterWith(*agent_, access); !s.ok()) return s.status();
  register_ms_ = Seconds(Now() - before) * 1e3;
  SessionRequest request{.shape = bench_.target_shape()};
  for (Channel& channel : channels_) {
    if (bench_.bidirectional) request.drive = cache_.regions();
    auto session = TargetSession::Open(channel, *agent_, request, bench_.timeout);
    if (!session.ok()) return session.status();
    links_.push_back(
        {.peer = session->peer(), .session = session->id(), .remote = session->regions()});
    sessions_.push_back(std::move(*session));
  }
  if (bench_.bidirectional) {
    agent_->OnNotification([this](const Notification&) { notified_.fetch_add(1); });
  }
  const auto blocks = static_cast<uint32_t>(bench_.request_blocks);
  if (absl::Status s = Into(
          requests_,
          FixedRequests::Make(cache_, links_, static_cast<uint32_t>(bench_.threads),
                              {.seed = InitiatorSeed(bench_.seed), .first = 0, .blocks = blocks},
                              {.seed = TargetSeed(bench_.seed), .first = 0, .blocks = blocks}));
      !s.ok())
    return s;
  return absl::OkStatus();
}

Opened BenchInitiator::opened() const {
  const std::string path = ChosenPath(*agent_, sessions_[0].peer(), bench_.memory);
  return {.backend = path.substr(0, path.find(": ")),
          .path = path,
          .register_ms = register_ms_,
          .first_transfer_us = first_transfer_us_};
}

absl::StatusOr<std::vector<TargetReport>> BenchInitiator::Report(
    const std::vector<Tally>& expected) {
  std::vector<TargetReport> reports;
  for (size_t i = 0; i < sessions_.size(); ++i) {
    // A service does not count the notifications that it answers.
    const uint64_t count = bench_.latency || expected.empty() ? 0 : expected[i].requests;
    absl::StatusOr<TargetReport> report = sessions_[i].Report(count, bench_.timeout);
    if (!report.ok()) return report.status();
    reports.push_back(std::move(*report));
  }
  return reports;
}

absl::StatusOr<LoopResult> BenchInitiator::Forward(const LoopSpec& spec, TraceSource* trace,
                                                   std::atomic<uint64_t>* moved) {
  if (trip_) {
    RoundTripSource source(cache_, spec);
    const Exchange trip = [this](size_t, const Request&) { return trip_->Once(bench_.by_message); };
    return RunLoop(spec, 1, 1, source, trip, moved);
  }
  TimelineRecorder timeline(spec.timeline);
  const Mover mover(*agent_, links_, bench_.write, bench_.timeout, &timeline);
  const Exchange exchange = [&mover](size_t stream, const Request& r) {
    return mover.Move(stream, r);
  };
  FixedSource fixed(*requests_, spec);
  RequestSource& source = trace != nullptr ? static_cast<RequestSource&>(*trace) : fixed;
  auto result = RunLoop(spec, requests_->streams(), links_.size(), source, exchange, moved);
  if (!result.ok()) return result;
  result->timeline = timeline.Take(spec.start_ns);
  for (TransferTimes& times : result->timeline) {
    times.thread %= static_cast<uint32_t>(bench_.threads);
  }
  return result;
}

absl::StatusOr<BenchInitiator::Ran> BenchInitiator::Run(const LoopSpec& spec, TraceSource* trace,
                                                        std::atomic<uint64_t>* moved) {
  absl::StatusOr<Ran> ran = RunAll(spec, trace, moved);
  if (!ran.ok()) return BrokenOff(ran.status());
  return ran;
}

absl::StatusOr<BenchInitiator::Ran> BenchInitiator::RunAll(const LoopSpec& spec, TraceSource* trace,
                                                           std::atomic<uint64_t>* moved) {
  absl::StatusOr<std::vector<TargetReport>> before = Report({});
  if (!before.ok()) return before.status();
  notified_.store(0);
  absl::StatusOr<LoopResult> back = LoopResult{};
  std::thread driver;
  if (bench_.bidirectional) driver = std::thread([&] { back = DriveBack(spec); });
  absl::StatusOr<LoopResult> forward = Forward(spec, trace, moved);
  if (driver.joinable()) {
    // A run that has failed does not wait for the other direction.
    if (!forward.ok()) {
      for (Channel& channel : channels_) channel.Shutdown();
    }
    driver.join();
  }
  // The same failure usually ends both directions; this direction's status names a transfer.
  if (!forward.ok()) return forward.status();
  if (!back.ok()) return back.status();
  if (absl::Status s = AwaitNotified(back->all.requests); !s.ok()) return s;
  absl::StatusOr<std::vector<TargetReport>> after = Report(forward->targets);
  if (!after.ok()) return after.status();
  for (const TargetReport& report : *after) {
    forward->notified.Merge(report.notified);
    AddArrivalTimes(report.arrivals, forward->timeline);
  }
  for (size_t i = 0; i < back->targets.size(); ++i) forward->targets[i].Merge(back->targets[i]);
  forward->all.Merge(back->all);
  forward->times.Merge(back->times);
  return Ran{
      .result = std::move(*forward), .before = std::move(*before), .after = *std::move(after)};
}

}  // namespace kvxfer::cli
