// The implementation behind Agent. It plans transfers on the caller's thread and runs everything
// else on the driver (progress_loop.h). Agent forwards to it; Transfer handles find it through a
// weak pointer.
//
// Thread-safety: the public methods from any thread, except those of Driven, which only the driver
// calls.

#ifndef KVXFER_AGENT_ENGINE_ENGINE_H_
#define KVXFER_AGENT_ENGINE_ENGINE_H_

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/agent/engine/agent_factory.h"
#include "src/agent/engine/deregistrations.h"
#include "src/agent/engine/fork_guard.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"
#include "src/agent/session/peer.h"
#include "src/core/kv/kv_group.h"

namespace kvxfer {

// The longest duration that an option may have; adding it to the clock does not overflow.
inline constexpr Duration kLongest = std::chrono::hours(24 * 365);

class Engine : public Driven, public std::enable_shared_from_this<Engine> {
 public:
  using Blocks = std::variant<std::monostate, PagedBlocks, DescriptorBlocks>;

  static absl::StatusOr<std::shared_ptr<Engine>> Create(const AgentOptions& options,
                                                        internal::BackendMaker make);
  Engine(const AgentOptions& options, internal::BackendMaker make)
      : runtime_(options), inbound_(&runtime_), make_backend_(make) {}
  ~Engine() override;

  // Ends everything. No other call may run at the same time or follow. Does nothing in a forked
  // child.
  void Close();

  const AgentOptions& options() const { return runtime_.options; }
  Incarnation incarnation() const { return runtime_.incarnation; }
  const std::string& listen_address() const { return listen_address_; }
  bool InForkedChild() const { return fork_guard_.InChild(); }
  absl::Status CheckNotForked() const { return fork_guard_.Check(); }

  absl::StatusOr<std::vector<RegionId>> RegisterMemory(std::span<const MemorySpan> spans,
                                                       Access access);
  absl::Status DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                std::vector<RegionId>* in_use);

  absl::StatusOr<std::string> Metadata();
  absl::StatusOr<std::string> AddPeer(std::string_view metadata_bytes);
  absl::Status RemovePeer(std::string_view peer);
  absl::StatusOr<Explanation> Explain(std::string_view peer);
  absl::StatusOr<std::vector<PeerRegion>> Regions(std::string_view peer) const;

  absl::StatusOr<TransferPtr> Start(TransferKind kind, std::string_view peer, const Blocks& blocks,
                                    TransferOptions options);
  // A transfer between KV caches, with every rank of `group` that holds a part of the blocks.
  absl::StatusOr<TransferPtr> StartBlocks(TransferKind kind, std::span<const std::string> group,
                                          const KvBlocks& blocks, const KvOptions& options);
  void Cancel(const TransferPtr& record);
  // FailedPrecondition inside a callback, which must not call `what` because `what` may wait.
  static absl::Status RefuseInCallback(std::string_view what);
  // Drives or parks until done(). False: `done` did not become true by `deadline`. Cancelled: the
  // agent was closed. Inside a callback it is always refused, even if `done` is true already:
  // otherwise the mistake would show only under load. `answers`: see ProgressLoop::DriveUntil.
  absl::StatusOr<bool> WaitFor(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                               bool answers = false);

  // See Agent.
  absl::Status RegisterKvCache(std::string_view name, const KvLayout& layout,
                               std::span<const uint64_t> tensors);
  absl::Status DeregisterKvCache(std::string_view name);
  absl::Status WaitLayers(std::string_view cache, std::string_view request, uint32_t layers,
                          Duration timeout);
  absl::Status DropRequest(std::string_view cache, std::string_view request);
  absl::Status LeaseBlocks(std::string_view cache, std::string_view lease,
                           std::span<const uint32_t> ids, Duration hold, std::string_view contents);
  absl::Status RenewLease(std::string_view lease, Duration hold);
  absl::Status ReleaseLease(std::string_view lease);
  absl::StatusOr<KvCounts> CountKv();

  EventQueue& events() { return runtime_.events; }
  size_t PollEvents(std::span<AgentEvent> events, AgentEventKinds kinds);
  absl::StatusOr<size_t> WaitEvents(std::span<AgentEvent> events, Duration timeout,
                                    AgentEventKinds kinds);
  absl::StatusOr<int> EventFd(AgentEventKinds kinds);
  absl::Status Watch(const TransferPtr& record, uint64_t user_word);
  Dispatcher& dispatcher() { return runtime_.dispatcher; }
  absl::StatusOr<QuiesceResult> Quiesce(const QuiesceScope& scope, Duration timeout);
  absl::StatusOr<bool> IsQuiet(QuiesceToken token);
  absl::Status Drain(Duration timeout);

  // Driven.
  bool Round(uint64_t readable, Time now, Leaving leaving) override;
  bool QuickRound(Time now, Leaving leaving) override;
  void Post() override;
  bool Arm() override;
  Time NextTimer() override;

 private:
  absl::Status Init();
  absl::Status MakeBackends();
  void WarnOfUnusedSections() const;
  absl::Status CheckServesMetadata() const;
  absl::Status CheckSomeBackend() const;
  absl::Status CheckOptions(const TransferOptions& options) const;
  absl::StatusOr<TransferPtr> NewRecord(TransferKind kind,
                                        const std::shared_ptr<const PeerView>& view,
                                        TransferOptions options);
  struct KvParties;
  absl::StatusOr<KvParties> FindParties(std::span<const std::string> group,
                                        std::string_view cache) const;
  absl::StatusOr<TransferPtr> NewMember(TransferKind kind, const KvParties& parties,
                                        const KvShare& share, const KvBlocks& blocks,
                                        const KvOptions& options);
  absl::StatusOr<TransferPtr> StartGroup(TransferKind kind, std::vector<TransferPtr> members,
                                         const KvOptions& options);
  // Takes the place of the end in the event queue, if the options have a user word.
  absl::Status ReserveEnd(internal::TransferRecord& record);
  // False: the agent is closed, and the transfer is not posted.
  bool SubmitPosted(const TransferPtr& record, ProgressLoop::Command command);
  void Enlist(const TransferPtr& record);
  void CancelMembers(const internal::TransferRecord& whole, const absl::Status& why);
  bool CancelBrokenGroups();
  absl::StatusOr<std::shared_ptr<const PeerView>> FindView(std::string_view peer) const;
  void PublishView(const Peer& peer);
  // Runs `command` on the driver. FailedPrecondition: the agent was closed, or this process was
  // forked.
  absl::Status Call(absl::FunctionRef<void()> command);
  // The same, and returns what the command returns: a Status or a StatusOr.
  template <typename Said>
  Said CallFor(absl::FunctionRef<Said()> command) {
    Said said = absl::UnknownError("");
    absl::Status called = Call([&] { said = command(); });
    return called.ok() ? said : Said(std::move(called));
  }
  static absl::Status ClosedError();
  static absl::Status NoPlaceForEnd();
  absl::Status CheckNotDraining() const;
  // Text for people: what Drain still waits for. Empty: nothing.
  absl::StatusOr<std::string> LeftToDrain();
  // Both append to `made` each region that they registered, also when they fail.
  absl::Status RegisterHost(std::span<const MemorySpan> spans, Access access,
                            std::vector<RegionId>& made);
  absl::Status RegisterCuda(const MemorySpan& span, Access access, std::vector<RegionId>& made);
  void OnDrained(uint64_t bytes);
  // The methods below are called by the driver only.
  AgentMetadata Describe() const;
  std::shared_ptr<const std::string> ServedMetadata();
  absl::Status Install(AgentMetadata metadata);
  bool PollAll(absl::FunctionRef<Input(size_t backend)> input, Time now, Leaving leaving);
  bool Poll(size_t backend, size_t most, Input input);
  bool DispatchAll(Leaving leaving);
  void TakeCopied();
  void PumpPeers(Time now);
  // Includes the peers in leaving_. `act` must not add or remove a peer.
  void ForEachPeer(absl::FunctionRef<void(Peer&)> act);
  void FinishRound(Time now, Leaving leaving);
  bool MayHoldAnswers();
  void Dispatch(Event& event);
  Peer* FindPeer(std::string_view name);
  void CloseAll();
  void SendAll(Time now, bool hold_answers);

  Runtime runtime_;
  InboundHub inbound_;
  const internal::BackendMaker make_backend_;
  ForkGuard fork_guard_;
  std::string listen_address_;
  std::vector<PathExplanation> unusable_;  // backends of the default list that this host cannot use
  std::atomic<bool> draining_{false};      // once true, no new work is accepted, ever
  std::atomic<uint64_t> last_transfer_{0};
  std::atomic<uint64_t> drained_{0};        // notifications that the application has taken
  std::atomic<uint64_t> drained_bytes_{0};  // payload bytes of those

  // The members down to answers_eager_ are used by the driver only.
  std::array<Event, 64> events_;  // the events of one Poll
  std::span<Event> undone_;       // the events in events_ that are not handled yet
  size_t undone_from_ = 0;        // the backend that reported them
  size_t next_backend_ = 0;       // the backend that the next round polls first
  std::map<std::string, std::unique_ptr<Peer>, std::less<>> peers_;
  std::string pumped_first_{};
  // Removed or replaced peers whose connections are closing.
  std::vector<std::unique_ptr<Peer>> leaving_;
  Deregistrations deregistrations_{&runtime_, &inbound_};
  std::optional<QuestionBook::Question> drain_question_;
  // The metadata as it was last served. It is encoded once for all peers that ask, until it
  // changes. Shared with the connections that are sending it.
  struct Served {
    uint64_t revision = 0;
    std::vector<AgentMetadata::BackendAddress> backends{};
    std::shared_ptr<const std::string> bytes{};
  } served_;
  bool closed_ = false;
  Time answers_held_{};         // since when answers are held back; zero: none are
  uint32_t answers_late_ = 0;   // how often in a row the application did not answer in time
  uint32_t answers_eager_ = 0;  // how many of the next answers are sent at once
  std::atomic<bool> staging_registered_{false};  // set by the driver

  mutable std::mutex views_mu_;
  std::map<std::string, std::shared_ptr<const PeerView>, std::less<>> views_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_ENGINE_H_
