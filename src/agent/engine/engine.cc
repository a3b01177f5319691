// Engine: creating and closing it, the rounds of progress, and waiting.
#include "src/agent/engine/engine.h"

#include <algorithm>
#include <utility>

#include "src/agent/engine/backend_list.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/log.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How long Close waits for peers to stop using this agent's memory.
constexpr Duration kCloseWithin = std::chrono::seconds(2);

// Answers to the peer, such as the acknowledgement of an arrival, are held back for a driver that
// is about to answer a notification. It usually posts its answer within kAnswersWithin, and both go
// to the peer one right behind the other, which saves the peer a wake-up. If the application was
// later than that kLate times in a row, the next kEager are sent at once, because those that were
// held back had to wait for the background thread. A single late one may come from a thread that
// was preempted.
constexpr Duration kAnswersWithin = std::chrono::microseconds(50);
constexpr uint32_t kLate = 2;
constexpr uint32_t kEager = 64;

// How often GPU copies are polled while one is under way. Nothing signals their end.
constexpr Duration kCopyPoll = std::chrono::microseconds(20);

// "tcp" of "faulty:tcp".
std::string_view Undecorated(std::string_view backend) {
  return backend.substr(backend.find(':') + 1);
}

// Each section of AgentOptions::backend is that of a backend which may exist.
absl::Status CheckSections(const AgentOptions& options) {
  std::vector<std::string> known = KnownBackendNames();
  known.emplace_back("faulty");
  for (const std::string& name : options.backends) known.emplace_back(Undecorated(name));
  for (const auto& [name, section] : options.backend) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string nearest = NearestWord(name, known);
    return absl::InvalidArgumentError(
        absl::StrCat("there are options of a backend \"", name, "\", which does not exist",
                     nearest.empty() ? "" : "; did you mean ", nearest,
                     nearest.empty() ? "; a plugin must be named in `backends`" : "?"));
  }
  return absl::OkStatus();
}

absl::Status CheckAgentOptions(const AgentOptions& options) {
  if (absl::Status named = CheckName("agent", options.name); !named.ok()) return named;
  if (options.heartbeat <= Duration::zero() || options.connect_timeout <= Duration::zero() ||
      options.suspect_after <= options.heartbeat || options.cancel_grace < Duration::zero() ||
      options.kv_request_timeout <= Duration::zero()) {
    return absl::InvalidArgumentError(
        "heartbeat, connect_timeout and kv_request_timeout must be positive, suspect_after longer "
        "than heartbeat, cancel_grace not negative");
  }
  for (const Duration duration : {options.heartbeat, options.suspect_after, options.connect_timeout,
                                  options.cancel_grace, options.kv_request_timeout, options.spin}) {
    if (duration <= kLongest) continue;
    return absl::InvalidArgumentError(
        "heartbeat, suspect_after, connect_timeout, cancel_grace, kv_request_timeout and spin "
        "may be at most a year");
  }
  if (options.staging_bytes > AgentOptions::kMaxStagingBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging_bytes must be at most 64 GiB, is ", options.staging_bytes));
  }
  if (options.max_notifications == 0 || options.max_notification_bytes < kMaxNotificationBytes ||
      options.max_active_transfers == 0 || options.max_active_transfers > kMaxSessionTransfers) {
    return absl::InvalidArgumentError(
        "max_notifications must be positive, max_active_transfers 1 to 16384, "
        "max_notification_bytes at least 64 KiB");
  }
  if (absl::Status known = CheckSections(options); !known.ok()) return known;
  return ChooseBackends(options.backends, DefaultBackends()).status();
}

// Whether `status` says that the backend cannot work on this host, as opposed to one that is
// configured wrongly.
bool NotUsableHere(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Engine>> Engine::Create(const AgentOptions& options,
                                                       internal::BackendMaker make) {
  if (auto status = CheckAgentOptions(options); !status.ok()) return status;
  auto engine = std::make_shared<Engine>(options, make);
  if (auto status = engine->Init(); !status.ok()) return status;
  return engine;
}

Engine::~Engine() { Close(); }

absl::Status Engine::Init() {
  auto key = SigningKey::Generate();
  if (!key.ok()) return key.status();
  const auto incarnation = IncarnationOf(key->public_key());
  if (!incarnation.ok()) return incarnation.status();
  runtime_.key = *std::move(key);
  runtime_.incarnation = *incarnation;
  runtime_.host = ReadHostIdentity();
  if (auto status = runtime_.events.Open(); !status.ok()) return status;
  if (auto status = MakeBackends(); !status.ok()) return status;
  std::vector<int> fds;
  for (const auto& backend : runtime_.backends) {
    const BackendInfo& info = backend->Describe();
    fds.push_back(info.wait_fd);
    // The address of the backend that serves metadata, if there is one: AgentOptions::listen names
    // that one. Otherwise the address of a backend that listens for TCP connections too.
    if (listen_address_.empty() || info.capabilities.serves_metadata) {
      listen_address_ = info.listen_address;
    }
  }
  runtime_.events.set_on_drained([this](uint64_t bytes) { OnDrained(bytes); });
  return runtime_.loop.Start(this, fds);
}

absl::Status Engine::MakeBackends() {
  const AgentOptions& options = runtime_.options;
  BackendContext context{options, runtime_.incarnation, runtime_.host};
  if (options.serve_metadata) context.metadata = [this] { return ServedMetadata(); };
  auto list = ChooseBackends(options.backends, DefaultBackends());
  if (!list.ok()) return list.status();
  for (const std::string& name : list->names) {
    auto backend = make_backend_(name, context);
    if (backend.ok()) {
      runtime_.backends.push_back(*std::move(backend));
      continue;
    }
    const absl::Status& why = backend.status();
    // By default an agent takes the backends that work here. A backend that was named must work.
    if (list->strict || !NotUsableHere(why)) {
      return absl::Status(why.code(), absl::StrCat("backend ", WithName(why, name).message()));
    }
    unusable_.push_back({.backend = name, .why = std::string(why.message())});
    // Missing hardware is normal and is logged at debug; hardware that is present but unusable is a
    // warning.
    Log(absl::IsUnimplemented(why) ? LogLevel::kDebug : LogLevel::kWarning,
        "agent {} goes without a backend: {}", options.name, unusable_.back().why);
  }
  inbound_.OpenArrivalCapacities();
  WarnOfUnusedSections();
  if (auto status = CheckServesMetadata(); !status.ok()) return status;
  return CheckSomeBackend();
}

// Options of a backend that the agent goes without are not ignored in silence.
void Engine::WarnOfUnusedSections() const {
  for (const auto& section : runtime_.options.backend) {
    const std::string& name = section.first;
    const bool used = std::ranges::any_of(runtime_.backends, [&name](const auto& backend) {
      return Undecorated(backend->name()) == name ||
             backend->name().starts_with(absl::StrCat(name, ":"));
    });
    if (used || section.second.empty()) continue;
    Log(LogLevel::kWarning, "agent {}: options of backend {} are set, and it has no such backend",
        runtime_.options.name, name);
  }
}

absl::Status Engine::CheckServesMetadata() const {
  const bool able = std::ranges::any_of(
      runtime_.backends, [](const auto& b) { return b->capabilities().serves_metadata; });
  if (able || !runtime_.options.serve_metadata) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "`serve_metadata` (KVXFER_SERVE_METADATA) is set, but the agent has no backend tcp, whose "
      "port hands metadata out; add \"tcp\" to `backends` (KVXFER_BACKENDS)");
}

// Among the backends that are left there must be one, and one of require_backends if that is set.
absl::Status Engine::CheckSomeBackend() const {
  const auto& required = runtime_.options.require_backends;
  const auto wanted = [&required](std::string_view name) {
    return required.empty() || std::ranges::find(required, name) != required.end();
  };
  std::string all;
  for (const PathExplanation& path : unusable_) {
    if (!wanted(path.backend)) continue;
    absl::StrAppend(&all, all.empty() ? "" : "; ", path.why);
  }
  const bool some = std::ranges::any_of(
      runtime_.backends, [&](const auto& backend) { return wanted(backend->name()); });
  if (some || all.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no ", required.empty() ? "" : "required ", "backend is usable here: ", all));
}

void Engine::Close() {
  if (fork_guard_.InChild()) return;
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
      runtime_.loop.Call([&] {
        down = inbound_.Finished() &&
               std::ranges::all_of(leaving_, [](const auto& peer) { return peer->Finished(); });
      });
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
  closed_ = true;
  // A last round: transfers whose acknowledgement has already arrived end as done.
  Round(~uint64_t{0}, Now(), Stays);
  const absl::Status why = absl::CancelledError(kAgentClosed);
  for (auto& [name, peer] : peers_) {
    // Half of the time at most, so that the connections have the other half to close.
    peer->Close(TransferState::kCancelled, why,
                std::min<Duration>(runtime_.options.cancel_grace, kCloseWithin / 2));
    peer->Pump(Now());
    leaving_.push_back(std::move(peer));
  }
  peers_.clear();
  // Sends the acknowledgements that are due before the connections close.
  inbound_.Pump();
  inbound_.Close(why);
}

bool Engine::Round(uint64_t readable, Time now, Leaving leaving) {
  const auto input = [readable](size_t backend) {
    return (readable >> backend & 1) != 0 ? Input::kAll : Input::kInMemory;
  };
  const bool busy = PollAll(input, now, leaving);
  FinishRound(now, leaving);
  return busy;
}

bool Engine::QuickRound(Time now, Leaving leaving) {
  if (!PollAll([](size_t) { return Input::kLikely; }, now, leaving)) return false;
  FinishRound(now, leaving);
  return true;
}

bool Engine::MayHoldAnswers() {
  if (answers_eager_ == 0) return true;
  --answers_eager_;
  return false;
}

bool Engine::PollAll(absl::FunctionRef<Input(size_t)> input, Time now, Leaving leaving) {
  bool busy = !undone_.empty();
  runtime_.now = now;
  busy |= runtime_.staging.Poll();
  // Events that the last driver left over.
  DispatchAll(Stays);
  runtime_.copied = 0;
  // next_backend_ advances with each poll. If the driver leaves early, the next round begins with
  // the backends that this one did not reach.
  const size_t count = runtime_.backends.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = std::exchange(next_backend_, (next_backend_ + 1) % count);
    busy |= Poll(at, events_.size(), input(at));
    if (!DispatchAll(leaving)) return true;
  }
  return busy;
}

// Takes up to `most` events from one backend. True: there were any.
bool Engine::Poll(size_t backend, size_t most, Input input) {
  const auto space = std::span(events_).first(most);
  undone_ = space.first(runtime_.backends[backend]->Poll(space, input));
  undone_from_ = backend;
  return !undone_.empty();
}

// False: the driver is leaving. The next round handles the remaining events first.
bool Engine::DispatchAll(Leaving leaving) {
  while (!undone_.empty()) {
    Event event = std::exchange(undone_.front(), Event());
    undone_ = undone_.subspan(1);
    Dispatch(event);
    if (!undone_.empty() && leaving()) return false;
  }
  return true;
}

// Polls the completions of writes that were copied inside Post, so that what follows them (the
// OPEN) goes out now and not in the next round. A kCopied backend that is asked for no more events
// than that does nothing else (kInlineCopyBytes in backend.h).
void Engine::TakeCopied() {
  DispatchAll(Stays);
  const size_t n = std::min(std::exchange(runtime_.copied, 0), events_.size());
  for (size_t at = 0; at < runtime_.backends.size(); ++at) {
    if (runtime_.backends[at]->capabilities().arrival != Arrival::kCopied) continue;
    Poll(at, n, Input::kInMemory);
    DispatchAll(Stays);
  }
  runtime_.finished.clear();
}

void Engine::FinishRound(Time now, Leaving leaving) {
  runtime_.finished.clear();
  if (NextTimer() <= now) {
    ForEachPeer([now](Peer& peer) { peer.OnTimer(now); });
    inbound_.OnTimer(now);
    runtime_.kv.Expire(now);
    runtime_.leases.Expire(now);
  }
  SendAll(now, leaving() && MayHoldAnswers());
}

void Engine::Dispatch(Event& event) {
  if (event.kind == EventKind::kAccepted) {
    if (closed_) event.accepted->Shutdown(absl::CancelledError(kAgentClosed));
    inbound_.Accept(undone_from_, std::move(event.accepted));
    return;
  }
  // An endpoint whose user has gone has no entry: its remaining events are dropped.
  const auto user = runtime_.users.find(event.endpoint);
  if (user != runtime_.users.end()) user->second->OnEvent(event);
}

void Engine::Post() { SendAll(Now(), false); }

void Engine::SendAll(Time now, bool hold_answers) {
  // For kAnswersWithin at most, counted from the first one that was held back.
  const bool hold =
      hold_answers && (answers_held_ == Time{} || now - answers_held_ <= kAnswersWithin);
  if (hold && answers_held_ == Time{}) answers_held_ = now;
  if (!hold && answers_held_ != Time{}) {
    answers_late_ = now - answers_held_ > kAnswersWithin ? answers_late_ + 1 : 0;
    if (answers_late_ == kLate) answers_eager_ = kEager;
    answers_late_ %= kLate;
    answers_held_ = Time{};
  }
  runtime_.answers_wait = hold;
  runtime_.now = now;
  PumpPeers(now);
  if (runtime_.copied > 0) {
    TakeCopied();
    PumpPeers(now);
  }
  std::erase_if(leaving_, [this](const auto& peer) {
    // While closing, Close looks at each peer until it is finished.
    if (closed_ || !peer->Finished()) return false;
    Peer* heir = FindPeer(peer->metadata().name);
    // The same incarnation was added again: it inherits the quarantines that have not ended.
    if (heir != nullptr && heir->metadata().incarnation == peer->metadata().incarnation) {
      heir->Inherit(*peer);
    }
    return true;
  });
  // Before inbound_.Pump, which sends the questions that Advance asks.
  deregistrations_.Advance();
  if (!hold) inbound_.Pump();
}

// Peers compete for staging buffers and the first in order gets them, so each pass starts at
// another peer. The pass is repeated if it cancelled members of a group, or if a staging buffer was
// returned that an earlier peer in the pass had wanted, or a session that it had waited for.
void Engine::PumpPeers(Time now) {
  do {
    runtime_.own_buffer_wanted = runtime_.own_buffer_freed = false;
    runtime_.session_freed = false;
    if (runtime_.staging.open() && peers_.size() > 1) {
      auto first = peers_.upper_bound(pumped_first_);
      if (first == peers_.end()) first = peers_.begin();
      pumped_first_ = first->first;
      for (auto it = first; it != peers_.end(); ++it) it->second->Pump(now);
      for (auto it = peers_.begin(); it != first; ++it) it->second->Pump(now);
      for (auto& peer : leaving_) peer->Pump(now);
    } else {
      ForEachPeer([now](Peer& peer) { peer.Pump(now); });
    }
  } while (CancelBrokenGroups() || runtime_.own_buffer_freed || runtime_.session_freed);
}

void Engine::ForEachPeer(absl::FunctionRef<void(Peer&)> act) {
  for (auto& [name, peer] : peers_) act(*peer);
  for (auto& peer : leaving_) act(*peer);
}

bool Engine::Arm() {
  bool armed = undone_.empty() && !deregistrations_.due();
  for (const auto& backend : runtime_.backends) armed &= backend->Arm();
  return armed;
}

Time Engine::NextTimer() {
  Time next =
      std::min({inbound_.NextTimer(), runtime_.kv.NextExpiry(), runtime_.leases.NextExpiry()});
  ForEachPeer([&next](Peer& peer) { next = std::min(next, peer.NextTimer()); });
  if (runtime_.staging.busy()) next = std::min<Time>(next, Now() + kCopyPoll);
  return next;
}

// Credit is returned in a round. Requests one each time the application has taken so much that the
// initiator may be waiting for credit. Runs on the application's thread; the counters only set the
// pace, so relaxed order suffices.
void Engine::OnDrained(uint64_t bytes) {
  const AgentOptions& options = runtime_.options;
  const uint64_t step = std::clamp<uint64_t>(options.max_notifications / 4, 1, 256);
  const uint64_t byte_step = std::max<uint64_t>(CreditByteStep(options.max_notification_bytes), 1);
  const uint64_t count = drained_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t before = drained_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const bool bytes_due = before / byte_step != (before + bytes) / byte_step;
  if (count % step == 0 || bytes_due) runtime_.loop.Submit([] {});
}

absl::Status Engine::ClosedError() { return absl::FailedPreconditionError("the agent is closed"); }

absl::Status Engine::RefuseInCallback(std::string_view what) {
  if (!Dispatcher::InCallback()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      ToAbsl(what), " inside a callback is refused: it would stop every other callback"));
}

absl::Status Engine::Call(absl::FunctionRef<void()> command) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (runtime_.loop.Call(command)) return absl::OkStatus();
  return ClosedError();
}

absl::StatusOr<bool> Engine::WaitFor(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                                     bool answers) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (auto status = RefuseInCallback("waiting"); !status.ok()) return status;
  if (done()) return true;
  if (runtime_.loop.DriveUntil(key, done, deadline, answers)) return true;
  if (runtime_.loop.stopped()) return absl::CancelledError(kAgentClosed);
  return false;
}

}  // namespace kvxfer
