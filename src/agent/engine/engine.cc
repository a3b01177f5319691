#include "src/agent/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "src/agent/engine/agent_backends.h"
#include "src/agent/engine/check_options.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/log.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer {
namespace {

// How long Close waits for peers to stop using this agent's memory.
constexpr Duration kCloseWithin = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::shared_ptr<Engine>> Engine::Create(const AgentOptions& options,
                                                       internal::BackendMaker make) {
  if (auto status = CheckAgentOptions(options); !status.ok()) return status;
  auto engine = std::make_shared<Engine>(options);
  if (auto status = engine->Init(make); !status.ok()) return status;
  return engine;
}

Engine::Engine(const AgentOptions& options)
    : runtime_(options),
      inbound_(&runtime_),
      gate_(&runtime_.loop, options.name),
      peers_(&runtime_, &inbound_, &views_),
      poller_(&runtime_, this),
      own_metadata_(&runtime_),
      peer_service_({.runtime = &runtime_,
                     .gate = &gate_,
                     .table = &peers_,
                     .views = &views_,
                     .inbound = &inbound_}),
      memory_(&runtime_, &gate_, &inbound_),
      transfers_({.runtime = &runtime_, .gate = &gate_, .peers = &peers_, .views = &views_}),
      kv_transfers_(
          {.runtime = &runtime_, .gate = &gate_, .views = &views_, .transfers = &transfers_}),
      kv_(&runtime_, &gate_, &inbound_),
      events_(&runtime_, &gate_),
      quiet_({.runtime = &runtime_, .gate = &gate_, .views = &views_, .inbound = &inbound_}) {}

Engine::~Engine() { Close(); }

absl::Status Engine::Init(internal::BackendMaker make) {
  if (auto status = MakeKey(); !status.ok()) return status;
  runtime_.host = ReadHostIdentity();
  if (auto status = runtime_.events.Open(); !status.ok()) return status;
  if (auto status = MakeBackends(make); !status.ok()) return status;
  transfers_.Open(std::shared_ptr<TransferService>(shared_from_this(), &transfers_));
  std::vector<int> fds;
  for (const auto& backend : runtime_.backends) fds.push_back(backend->Describe().wait_fd);
  return runtime_.loop.Start(this, fds);
}

absl::Status Engine::MakeKey() {
  auto key = SigningKey::Generate();
  if (!key.ok()) return key.status();
  const auto incarnation = IncarnationOf(key->public_key());
  if (!incarnation.ok()) return incarnation.status();
  runtime_.key = *std::move(key);
  runtime_.incarnation = *incarnation;
  return absl::OkStatus();
}

absl::Status Engine::MakeBackends(internal::BackendMaker make) {
  BackendContext context{runtime_.options, runtime_.incarnation, runtime_.host};
  if (runtime_.options.serve_metadata) {
    context.metadata = [this] { return peers_.closed() ? nullptr : own_metadata_.Served(); };
  }
  auto made = MakeAgentBackends(context, make);
  if (!made.ok()) return made.status();
  listen_address_ = made->listen_address();
  runtime_.backends = std::move(made->usable);
  runtime_.unusable = std::move(made->unusable);
  inbound_.OpenArrivalCapacities();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Engine::Metadata() const {
  AgentMetadata metadata;
  auto status = gate_.Call([&] { metadata = own_metadata_.Describe(); });
  if (!status.ok()) return status;
  return EncodeMetadata(metadata);
}

void Engine::Close() {
  if (gate_.InForkedChild()) return;
  if (runtime_.loop.running()) {
    runtime_.loop.Call([this] { CloseAll(); });
    const Time until = Now() + kCloseWithin;
    // Rounds go on until every connection is closed: only then can no byte from a peer be written
    // to this agent's memory. The connections belong to the driver, so a command looks at them.
    std::atomic<bool> down{false};
    while (!down && Now() < until) {
      runtime_.loop.DriveUntil(
          &down, [&] { return down.load(); },
          std::min(until, Now() + std::chrono::milliseconds(1)));
      runtime_.loop.Call([&] { down = AllClosed(); });
    }
    if (!down) {
      Log(LogLevel::kWarning,
          "agent {}: some connections did not close in time; peers may still write to memory "
          "that was registered",
          runtime_.options.name);
    }
    runtime_.loop.Stop();
    runtime_.memory.DropDiscarded();
  }
  // Waits for GPU copies that are still queued: they touch the application's memory.
  runtime_.staging.Close();
  runtime_.dispatcher.Stop();
  runtime_.finished.clear();
}

void Engine::CloseAll() {
  // A last round: transfers whose acknowledgement has already arrived end as done.
  Round(~uint64_t{0}, Now(), Stays);
  const absl::Status why = absl::CancelledError(kAgentClosed);
  // Half of the time at most, so that the connections have the other half to close.
  peers_.Close(why, std::min<Duration>(runtime_.options.cancel_grace, kCloseWithin / 2));
  // Sends the acknowledgements that are due before the connections close.
  inbound_.Pump(Now());
  inbound_.Close(why);
}

bool Engine::AllClosed() const { return inbound_.Finished() && peers_.Finished(); }

bool Engine::Round(uint64_t readable, Time now, Leaving leaving) {
  const auto input = [readable](size_t backend) {
    return (readable >> backend & 1) != 0 ? Input::kAll : Input::kInMemory;
  };
  runtime_.now = now;
  const bool busy = poller_.PollAll(input, leaving);
  FinishRound(now, leaving);
  return busy;
}

bool Engine::QuickRound(Time now, Leaving leaving) {
  runtime_.now = now;
  if (!poller_.PollAll([](size_t) { return Input::kLikely; }, leaving)) return false;
  FinishRound(now, leaving);
  return true;
}

void Engine::FinishRound(Time now, Leaving leaving) {
  runtime_.finished.clear();
  if (NextTimer() <= now) {
    runtime_.timers.Run(now);
    runtime_.kv.Expire(now);
    runtime_.leases.Expire(now);
  }
  SendAll(now, leaving());
}

void Engine::Post() { SendAll(Now(), false); }

void Engine::SendAll(Time now, bool leaving) {
  runtime_.answers_wait = answer_hold_.Holds(leaving, now);
  runtime_.now = now;
  peers_.Pump(now);
  peers_.Sweep();
  // Before inbound_.Pump, which sends the questions that Advance asks.
  memory_.Advance();
  if (!runtime_.answers_wait) inbound_.Pump(now);
}

void Engine::OnAccepted(size_t backend, std::unique_ptr<Endpoint> endpoint) {
  if (peers_.closed()) endpoint->Shutdown(absl::CancelledError(kAgentClosed));
  inbound_.Accept(backend, std::move(endpoint));
}

bool Engine::Arm() {
  const bool due =
      memory_.due() || runtime_.peers.any() || (!runtime_.answers_wait && runtime_.sessions.any());
  return poller_.Arm() && !due;
}

Time Engine::NextTimer() {
  return std::min({runtime_.timers.next(), runtime_.kv.NextExpiry(), runtime_.leases.NextExpiry(),
                   runtime_.staging.NextPoll()});
}

}  // namespace kvxfer
