// Two backends that talk to each other without agents: what the conformance suite of the backend
// interface, and any test of one backend, drives.
//
// A Party is one backend with a log of its events. Rules that hold for every event are checked as
// it comes: an op completes once and only if it was accepted, nothing follows kDown, kFenced
// answers a Fence of the same scope once, and a rail that goes down has no op left. The blocks of
// an op are freed with its completion, so that a sanitizer sees who reads them later. A BackendPair
// is two connected parties driven in one thread by turns; a PartyThread drives one of them in a
// thread of its own, asleep when there is nothing to do.
#ifndef KVXFER_TESTS_SUPPORT_BACKEND_PAIR_H_
#define KVXFER_TESTS_SUPPORT_BACKEND_PAIR_H_

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "tests/support/flavour.h"
#include "tests/support/run_blocks.h"
#include "tests/support/scale.h"
#include "tests/support/test_memory.h"

namespace kvxfer::testing {

// Memory that one party has registered.
struct TestRegion {
  TestMemory memory;
  RegionId id = RegionId::kNone;
  LocalRegion local;
  std::unique_ptr<Registration> registration;

  // As metadata would tell it.
  RemoteRegion remote() const;
  uint64_t address() const { return memory.address(); }
  std::span<std::byte> bytes() const { return memory.bytes(); }
};

// One endpoint with its log.
struct TestLink {
  std::unique_ptr<Endpoint> endpoint;
  std::vector<std::unique_ptr<RemoteKey>> keys;
  bool connected = false;
  bool down = false;
  absl::Status why;  // of kDown
  std::vector<uint32_t> immediates;
  std::vector<std::string> messages;
  std::set<uint64_t> fences;               // transfers: asked for
  std::set<uint64_t> fenced;               // answered
  std::set<uint64_t> open;                 // ops accepted and not completed
  std::map<uint64_t, absl::Status> ended;  // op → how
  // The ops made here that have not completed.
  std::map<uint64_t, std::unique_ptr<RunBlocks>> blocks;
  size_t failures = 0;                   // ops that ended with an error
  std::map<uint64_t, uint32_t> rail_of;  // open ops
  std::set<uint32_t> down_rails;         // kRailDown came, kRailUp not
  std::set<uint32_t> fencing_rails;      // asked for, not answered
  std::vector<uint32_t> rails_down;      // each time
  std::vector<uint32_t> rails_up;
  std::vector<uint32_t> rails_fenced;
  std::vector<uint32_t> on_rail;  // of `immediates`, over which each came
  uint64_t last_op = 0;

  // An op on this endpoint, to be posted once; its blocks live until its completion.
  Op Make(OpKind kind, uint64_t transfer, const std::vector<Run>& runs,
          std::optional<uint32_t> immediate = {}, uint32_t rail = 0);
  // Offers `ops` in order, until one is not accepted; returns how many were.
  size_t Post(std::span<const Op> ops);
  void Fence(uint64_t transfer);
  void FenceRail(uint32_t rail);
  bool Send(std::string_view message);
  size_t failed() const { return failures; }
  uint32_t rails() const { return static_cast<uint32_t>(endpoint->Describe().rails.size()); }
  bool rail_up(uint32_t rail) const { return endpoint->Describe().rails.at(rail).up; }
  std::string path() const { return endpoint->Describe().path; }
};

class Party {
 public:
  static absl::StatusOr<std::unique_ptr<Party>> Make(const Flavour& flavour, std::string_view name);
  // Regions and endpoints go before the backend; nobody is told.
  ~Party();

  Backend& backend() { return *backend_; }
  const Capabilities& capabilities() const { return backend_->capabilities(); }
  const HostIdentity& host() const { return host_; }

  absl::StatusOr<TestLink*> Connect(Party& other);
  // On any thread, as Backend::Register.
  absl::StatusOr<TestRegion*> Register(size_t bytes, Access access = Access::kReadWrite);

  // One Poll; returns the number of events.
  size_t Turn();
  // The same as an agent's driver: it looks for input only where wait_fd is readable.
  size_t TurnByWaitFd();
  // Sleeps on wait_fd, where Arm allows it, until it or `other_fd` (if not negative) is readable.
  // False: nothing was for `limit`.
  bool Sleep(Duration limit, int other_fd = -1);

  std::deque<std::unique_ptr<TestLink>> links;  // in the order of Connect and kAccepted
  std::function<void(TestLink&, uint32_t immediate)> on_immediate;

 private:
  Party(const Flavour& flavour, std::string_view name);
  size_t Poll(size_t space, Input input);
  void Take(Event& event);
  static void TakeFenced(TestLink& link, FenceScope scope);
  TestLink* Find(const Endpoint* endpoint);

  const MemoryType memory_;
  const AgentOptions options_;
  const HostIdentity host_;
  std::unique_ptr<Backend> backend_;
  int wait_fd_ = -1;
  std::atomic<uint32_t> last_region_ = 0;
  std::mutex mutex_;  // guards regions_
  std::vector<std::unique_ptr<TestRegion>> regions_;
  uint32_t turns_ = 0;
};

class BackendPair {
 public:
  // Connected; authorised unless `authorize` is false. Null: the failure is already reported.
  static std::unique_ptr<BackendPair> Make(const Flavour& flavour, bool authorize = true) {
    return Make(flavour, flavour, authorize);
  }
  static std::unique_ptr<BackendPair> Make(const Flavour& initiator, const Flavour& target,
                                           bool authorize = true);
  // Shuts down and expects both sides to end.
  ~BackendPair();

  Party& initiator() { return *initiator_; }
  Party& target() { return *target_; }
  TestLink& out() { return *initiator_->links.front(); }
  TestLink& in() { return *target_->links.front(); }

  void Authorize();
  // One Poll of each side; returns the number of events.
  size_t Turn();
  // Turns until `done`; false after `limit`.
  bool Until(const std::function<bool()>& done, Duration limit = kAmple);
  // Turns for as long as that, to see that something does not happen.
  void Idle(Duration time);

  // A region of the target, imported at the initiator. Null after a reported failure.
  const RemoteKey* Import(const TestRegion& region);
  absl::StatusOr<std::unique_ptr<RemoteKey>> TryImport(const RemoteRegion& region,
                                                       const std::string& key);
  // Posts all, turning while there is no room. False: no progress, or the link went down.
  bool PostAll(std::span<const Op> ops);
  bool AllEnded() { return out().open.empty(); }

 private:
  BackendPair() = default;
  std::unique_ptr<Party> initiator_;
  std::unique_ptr<Party> target_;
};

// Turns `party` until destroyed. Everything of the party is the thread's meanwhile, except what
// `after_turn` and WithLock do.
class PartyThread {
 public:
  PartyThread(Party* party, std::function<void()> after_turn);
  ~PartyThread();

  template <typename Fn>
  auto WithLock(Fn fn) {
    std::lock_guard lock(mutex_);
    return fn();
  }

 private:
  void Run();

  Party* const party_;
  const std::function<void()> after_turn_;
  const int stop_fd_;
  std::mutex mutex_;
  std::thread thread_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_BACKEND_PAIR_H_
