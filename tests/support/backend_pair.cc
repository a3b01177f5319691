#include "tests/support/backend_pair.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "src/core/base/host_identity.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_backends.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kMaxEvents = 64;  // of one Poll

}  // namespace

RemoteRegion TestRegion::remote() const {
  return {.id = id,
          .rkey = local.rkey,
          .base = address(),
          .bytes = memory.size(),
          .kind = local.span.kind,
          .device_id = local.span.device_id,
          .access = local.access};
}

Op TestLink::Make(OpKind kind, uint64_t transfer, const std::vector<Run>& runs,
                  std::optional<uint32_t> immediate, uint32_t rail) {
  const uint64_t op = ++last_op;
  const auto [at, made] = blocks.emplace(op, std::make_unique<RunBlocks>(runs));
  EXPECT_TRUE(made) << "op " << op << " was made twice";
  return {.kind = kind,
          .has_immediate = immediate.has_value(),
          .rail = rail,
          .immediate = immediate.value_or(0),
          .id = op,
          .transfer = transfer,
          .blocks = at->second->range()};
}

size_t TestLink::Post(std::span<const Op> ops) {
  size_t accepted = 0;
  for (; accepted < ops.size(); ++accepted) {
    const Op& op = ops[accepted];
    const Posted posted = endpoint->Post(op);
    if (!posted) break;
    if (posted.done()) {
      blocks.erase(op.id);
      EXPECT_TRUE(ended.emplace(op.id, absl::OkStatus()).second)
          << "op " << op.id << " ended twice";
      continue;
    }
    EXPECT_TRUE(open.insert(op.id).second);
    EXPECT_FALSE(down_rails.contains(op.rail)) << "accepted on a rail that is down";
    rail_of[op.id] = op.rail;
  }
  return accepted;
}

void TestLink::Fence(uint64_t transfer) {
  fences.insert(transfer);
  endpoint->Fence({.transfer = transfer});
}

void TestLink::FenceRail(uint32_t rail) {
  EXPECT_TRUE(fencing_rails.insert(rail).second);
  endpoint->Fence({.rail = rail});
}

bool TestLink::Send(std::string_view message) {
  return endpoint->Send(std::as_bytes(std::span(message)));
}

Party::Party(const Flavour& flavour, std::string_view name)
    : memory_(flavour.memory), options_(OptionsFor(flavour, name)), host_(ReadHostIdentity()) {}

absl::StatusOr<std::unique_ptr<Party>> Party::Make(const Flavour& flavour, std::string_view name) {
  std::unique_ptr<Party> party(new Party(flavour, name));
  auto backend = MakeTestBackend(
      flavour.backend,
      {.options = party->options_, .incarnation = Incarnation::Random(), .host = party->host_});
  if (!backend.ok()) return backend.status();
  party->backend_ = *std::move(backend);
  party->wait_fd_ = party->backend_->Describe().wait_fd;
  return party;
}

Party::~Party() {
  for (auto& link : links) link->keys.clear();
  links.clear();
  for (auto& region : regions_) region->registration.reset();
}

absl::StatusOr<TestLink*> Party::Connect(Party& other) {
  auto endpoint = backend_->Connect(other.backend_->Describe().address, other.host_);
  if (!endpoint.ok()) return endpoint.status();
  links.push_back(std::make_unique<TestLink>());
  links.back()->endpoint = *std::move(endpoint);
  return links.back().get();
}

absl::StatusOr<TestRegion*> Party::Register(size_t bytes, Access access) {
  auto memory = TestMemory::Allocate(memory_, bytes);
  if (!memory.ok()) return memory.status();
  auto region = std::make_unique<TestRegion>();
  region->memory = *std::move(memory);
  const uint32_t id = ++last_region_;
  region->id = static_cast<RegionId>(id);
  region->local = {.rkey = id * 0x9e3779b1u,  // odd factor: distinct and not zero
                   .span = region->memory.span(),
                   .access = access};
  // Every other one on a thread of its own, as agents do.
  absl::StatusOr<std::unique_ptr<Registration>> registration;
  const auto make = [&] { registration = backend_->Register(region->local); };
  if (id % 2 == 1) {
    std::thread(make).join();
  } else {
    make();
  }
  if (!registration.ok()) return registration.status();
  region->registration = *std::move(registration);
  std::lock_guard lock(mutex_);
  return regions_.emplace_back(std::move(region)).get();
}

size_t Party::Turn() {
  // Room of every size, one event included.
  constexpr std::array<size_t, 4> kSpace = {kMaxEvents, 1, 7, 16};
  const size_t space = kSpace[turns_++ % kSpace.size()];
  // Now and then with a short look at the descriptors or none, as a caller that spins does.
  constexpr std::array<Input, 5> kInputs = {Input::kInMemory, Input::kAll, Input::kLikely,
                                            Input::kAll, Input::kAll};
  return Poll(space, kInputs[turns_ % kInputs.size()]);
}

size_t Party::TurnByWaitFd() {
  pollfd fd{.fd = wait_fd_, .events = POLLIN, .revents = 0};
  return Poll(kMaxEvents, ::poll(&fd, 1, 0) > 0 ? Input::kAll : Input::kInMemory);
}

size_t Party::Poll(size_t space, Input input) {
  std::array<Event, kMaxEvents> events;
  const size_t n = backend_->Poll(std::span(events).first(space), input);
  EXPECT_LE(n, space);
  EXPECT_EQ(backend_->Describe().wait_fd, wait_fd_) << "wait_fd has changed";
  for (size_t i = 0; i < std::min(n, space); ++i) Take(events[i]);
  return n;
}

bool Party::Sleep(Duration limit, int other_fd) {
  if (!backend_->Arm()) return true;
  pollfd fds[2] = {{.fd = wait_fd_, .events = POLLIN, .revents = 0},
                   {.fd = other_fd, .events = POLLIN, .revents = 0}};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  return ::poll(fds, 2, static_cast<int>(ms)) > 0;
}

void Party::Take(Event& event) {
  if (event.kind == EventKind::kAccepted) {
    ASSERT_NE(event.accepted, nullptr);
    links.push_back(std::make_unique<TestLink>());
    links.back()->endpoint = std::move(event.accepted);
    links.back()->connected = true;
    return;
  }
  TestLink* const link = Find(event.endpoint);
  ASSERT_NE(link, nullptr) << "an event of an endpoint that nobody made";
  ASSERT_FALSE(link->down) << "event " << static_cast<int>(event.kind) << " after kDown";
  switch (event.kind) {
    case EventKind::kAccepted:
      return;
    case EventKind::kConnected:
      EXPECT_FALSE(link->connected) << "kConnected twice";
      link->connected = true;
      return;
    case EventKind::kDown:
      EXPECT_TRUE(link->open.empty()) << link->open.size() << " ops have not completed at kDown";
      EXPECT_FALSE(event.status.ok()) << "kDown without a cause";
      link->down = true;
      link->why = event.status;
      return;
    case EventKind::kMessage: {
      const auto* text = reinterpret_cast<const char*>(event.message.data());
      link->messages.emplace_back(text, event.message.size());
      return;
    }
    case EventKind::kImmediate:
      link->immediates.push_back(event.immediate);
      link->on_rail.push_back(event.rail);
      if (on_immediate) on_immediate(*link, event.immediate);
      return;
    case EventKind::kCompletion:
      EXPECT_EQ(link->open.erase(event.id), 1u)
          << "op " << event.id << " completed twice or was never accepted";
      link->rail_of.erase(event.id);
      link->blocks.erase(event.id);
      link->ended[event.id] = event.status;
      link->failures += !event.status.ok();
      return;
    case EventKind::kFenced:
      TakeFenced(*link, {.transfer = event.id, .rail = event.rail});
      return;
    case EventKind::kRailDown:
      EXPECT_TRUE(link->down_rails.insert(event.rail).second) << "kRailDown twice";
      EXPECT_FALSE(event.status.ok()) << "kRailDown without a cause";
      for (const auto& [op, rail] : link->rail_of) {
        EXPECT_NE(rail, event.rail) << "op " << op << " has not completed at kRailDown";
      }
      link->rails_down.push_back(event.rail);
      return;
    case EventKind::kRailUp:
      link->down_rails.erase(event.rail);
      link->rails_up.push_back(event.rail);
      return;
  }
}

void Party::TakeFenced(TestLink& link, FenceScope scope) {
  if (scope.transfer == FenceScope::kEveryTransfer) {
    EXPECT_EQ(link.fencing_rails.erase(scope.rail), 1u) << "kFenced that nobody asked for";
    link.rails_fenced.push_back(scope.rail);
    return;
  }
  EXPECT_EQ(scope.rail, FenceScope::kEveryRail) << "kFenced of another scope than was asked for";
  EXPECT_TRUE(link.fences.contains(scope.transfer)) << "kFenced that nobody asked for";
  EXPECT_TRUE(link.fenced.insert(scope.transfer).second) << "kFenced twice";
}

TestLink* Party::Find(const Endpoint* endpoint) {
  for (auto& link : links) {
    if (link->endpoint.get() == endpoint) return link.get();
  }
  return nullptr;
}

std::unique_ptr<BackendPair> BackendPair::Make(const Flavour& initiator, const Flavour& target,
                                               bool authorize) {
  std::unique_ptr<BackendPair> pair(new BackendPair);
  auto first = Party::Make(initiator, "initiator");
  auto second = Party::Make(target, "target");
  EXPECT_OK(first);
  EXPECT_OK(second);
  if (!first.ok() || !second.ok()) return nullptr;
  pair->initiator_ = *std::move(first);
  pair->target_ = *std::move(second);
  const auto link = pair->initiator_->Connect(*pair->target_);
  EXPECT_OK(link);
  if (!link.ok()) return nullptr;
  const bool up = pair->Until(
      [&] { return (pair->out().connected && !pair->target_->links.empty()) || pair->out().down; });
  EXPECT_TRUE(up && !pair->out().down) << "not connected: " << pair->out().why;
  if (!up || pair->out().down) return nullptr;
  if (authorize) pair->Authorize();
  return pair;
}

BackendPair::~BackendPair() {
  if (initiator_ == nullptr || target_ == nullptr) return;
  for (Party* party : {initiator_.get(), target_.get()}) {
    for (auto& link : party->links) {
      link->keys.clear();
      if (!link->down) link->endpoint->Shutdown(absl::CancelledError("the test is over"));
    }
  }
  EXPECT_TRUE(Until([&] {
    const auto down = [](const auto& link) { return link->down; };
    return std::ranges::all_of(initiator_->links, down) &&
           std::ranges::all_of(target_->links, down);
  })) << "no kDown after Shutdown";
}

// As agents do: the target says hello after it has authorised the link.
void BackendPair::Authorize() {
  const size_t before = out().messages.size();
  in().endpoint->Authorize();
  EXPECT_TRUE(Until([&] { return in().Send("hello"); }));
  EXPECT_TRUE(Until([&] { return out().messages.size() > before; })) << "no hello";
  const auto all_up = [&] {
    return std::ranges::all_of(out().endpoint->Describe().rails, &RailInfo::up);
  };
  EXPECT_TRUE(Until([&] { return all_up() || out().down; })) << "a rail does not come up";
  // Messages go their way from now on.
  const auto settled = [](TestLink& link) {
    const std::string path = link.path();
    return link.down || path.find("control by SEND") != std::string::npos ||
           path.find("control by TCP (") != std::string::npos;
  };
  const bool waits = initiator_->capabilities().carrier == ControlCarrier::kRdma;
  EXPECT_TRUE(!waits || Until([&] { return settled(out()) && settled(in()); }))
      << "no carrier: " << out().path();
}

size_t BackendPair::Turn() { return initiator_->Turn() + target_->Turn(); }

bool BackendPair::Until(const std::function<bool()>& done, Duration limit) {
  const Time end = Now() + limit;
  while (!done()) {
    if (Turn() == 0) Pause();
    if (Now() > end) return false;
  }
  return true;
}

void BackendPair::Idle(Duration time) {
  Until([] { return false; }, time);
}

const RemoteKey* BackendPair::Import(const TestRegion& region) {
  auto key = TryImport(region.remote(), region.registration->key);
  EXPECT_OK(key);
  if (!key.ok()) return nullptr;
  out().keys.push_back(*std::move(key));
  return out().keys.back().get();
}

absl::StatusOr<std::unique_ptr<RemoteKey>> BackendPair::TryImport(const RemoteRegion& region,
                                                                  const std::string& key) {
  absl::StatusOr<std::unique_ptr<RemoteKey>> imported;
  Until(
      [&] {
        imported = out().endpoint->Import(region, key);
        return !absl::IsUnavailable(imported.status());  // Unavailable: what it needs is under way
      },
      std::chrono::seconds(2));
  return imported;
}

bool BackendPair::PostAll(std::span<const Op> ops) {
  return Until([&] {
           if (out().down) return true;
           ops = ops.subspan(out().Post(ops));
           return ops.empty();
         }) &&
         ops.empty();
}

PartyThread::PartyThread(Party* party, std::function<void()> after_turn)
    : party_(party),
      after_turn_(std::move(after_turn)),
      stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

PartyThread::~PartyThread() {
  const uint64_t one = 1;
  EXPECT_EQ(::write(stop_fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  thread_.join();
  ::close(stop_fd_);
}

void PartyThread::Run() {
  uint64_t stop = 0;
  while (::read(stop_fd_, &stop, sizeof(stop)) < 0) {
    bool idle = false;
    {
      std::lock_guard lock(mutex_);
      idle = party_->Turn() == 0;
      after_turn_();
    }
    // Only this thread calls into the backend while it has nothing to do, so Sleep needs no lock.
    if (idle) party_->Sleep(kAmple, stop_fd_);
  }
}

}  // namespace kvxfer::testing
