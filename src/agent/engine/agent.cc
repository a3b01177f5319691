// Agent's public methods. Each forwards to a part of the engine; none takes a lock before it has
// checked that the process is not a forked child.

#include "kvxfer/agent.h"

#include <utility>

#include "src/agent/engine/agent_factory.h"
#include "src/agent/engine/engine.h"

namespace kvxfer {

class Agent::Impl {
 public:
  explicit Impl(std::shared_ptr<Engine> impl_engine) : engine(std::move(impl_engine)) {}
  std::shared_ptr<Engine> engine;
};

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(const AgentOptions& options) {
  return internal::AgentFactory::Create(options, MakeBackend);
}

absl::StatusOr<std::unique_ptr<Agent>> internal::AgentFactory::Create(const AgentOptions& options,
                                                                      BackendMaker make) {
  auto engine = Engine::Create(options, make);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Agent>(new Agent(std::make_unique<Agent::Impl>(*std::move(engine))));
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  if (impl_->engine->gate().InForkedChild()) {
    // The child has none of the agent's threads, and its sockets and wake-ups are the parent's. So
    // the engine is leaked here instead of closed.
    (void)impl_.release();
    return;
  }
  impl_->engine->Close();
}

const std::string& Agent::name() const { return impl_->engine->options().name; }
Incarnation Agent::incarnation() const { return impl_->engine->incarnation(); }
std::string Agent::listen_address() const { return impl_->engine->listen_address(); }

absl::StatusOr<RegionId> Agent::RegisterMemory(const MemorySpan& span, Access access) {
  auto made = impl_->engine->memory().Register(std::span(&span, 1), access);
  if (!made.ok()) return made.status();
  return made->front();
}
absl::StatusOr<std::vector<RegionId>> Agent::RegisterMemory(std::span<const MemorySpan> spans,
                                                            Access access) {
  return impl_->engine->memory().Register(spans, access);
}
absl::Status Agent::DeregisterMemory(RegionId region, Duration timeout) {
  return impl_->engine->memory().Deregister(std::span(&region, 1), timeout, nullptr);
}
absl::Status Agent::DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                     std::vector<RegionId>* in_use) {
  return impl_->engine->memory().Deregister(regions, timeout, in_use);
}

absl::StatusOr<std::string> Agent::Metadata() const { return impl_->engine->Metadata(); }
absl::StatusOr<std::string> Agent::AddPeer(std::string_view metadata) {
  return impl_->engine->peers().Add(metadata);
}
absl::Status Agent::RemovePeer(std::string_view peer) {
  return impl_->engine->peers().Remove(peer);
}
absl::StatusOr<Explanation> Agent::Explain(std::string_view peer) const {
  return impl_->engine->peers().Explain(peer);
}
absl::StatusOr<std::vector<PeerRegion>> Agent::Regions(std::string_view peer) const {
  return impl_->engine->peers().Regions(peer);
}

std::optional<PeerEvent> Agent::PollPeerEvent() {
  return impl_->engine->events().PollOne<PeerEvent>(AgentEventKinds::kPeer);
}
void Agent::OnPeerEvent(std::function<void(const PeerEvent&)> callback) {
  impl_->engine->events().SetCallback(std::move(callback));
}

namespace {
absl::StatusOr<Transfer> ToHandle(absl::StatusOr<TransferPtr> record) {
  if (!record.ok()) return record.status();
  return internal::TransferRecord::Handle(*std::move(record));
}
}  // namespace

absl::StatusOr<Transfer> Agent::Write(std::string_view peer, const PagedBlocks& blocks,
                                      const TransferOptions& options) {
  return ToHandle(impl_->engine->transfers().Start(TransferKind::kWrite, peer, blocks,
                                                   TransferOptions(options)));
}
absl::StatusOr<Transfer> Agent::Write(std::string_view peer, const DescriptorBlocks& blocks,
                                      const TransferOptions& options) {
  return ToHandle(impl_->engine->transfers().Start(TransferKind::kWrite, peer, blocks,
                                                   TransferOptions(options)));
}
absl::StatusOr<Transfer> Agent::Read(std::string_view peer, const PagedBlocks& blocks,
                                     const TransferOptions& options) {
  return ToHandle(impl_->engine->transfers().Start(TransferKind::kRead, peer, blocks,
                                                   TransferOptions(options)));
}
absl::StatusOr<Transfer> Agent::Read(std::string_view peer, const DescriptorBlocks& blocks,
                                     const TransferOptions& options) {
  return ToHandle(impl_->engine->transfers().Start(TransferKind::kRead, peer, blocks,
                                                   TransferOptions(options)));
}
absl::StatusOr<Transfer> Agent::Notify(std::string_view peer, std::string payload,
                                       const TransferOptions& options) {
  TransferOptions with_payload = options;
  with_payload.notification = std::move(payload);
  return ToHandle(
      impl_->engine->transfers().Start(TransferKind::kNotify, peer, {}, std::move(with_payload)));
}

absl::Status Agent::RegisterKvCache(const CacheName& name, const KvLayout& layout,
                                    std::span<const uint64_t> tensors) {
  return impl_->engine->kv().Register(name.text, layout, tensors);
}
absl::Status Agent::DeregisterKvCache(const CacheName& name) {
  return impl_->engine->kv().Deregister(name.text);
}
absl::StatusOr<Transfer> Agent::WriteBlocks(std::span<const std::string> group,
                                            const KvBlocks& blocks, const KvOptions& options) {
  return ToHandle(
      impl_->engine->kv_transfers().Start(TransferKind::kWrite, group, blocks, options));
}
absl::StatusOr<PreparedBlocks> Agent::PrepareBlocks(std::span<const std::string> group,
                                                    const KvBlocks& blocks) {
  auto prepared = impl_->engine->kv_transfers().Prepare(group, blocks);
  if (!prepared.ok()) return prepared.status();
  return internal::KvPreparedAccess::Handle(*std::move(prepared));
}
absl::StatusOr<Transfer> Agent::WriteLayers(const PreparedBlocks& blocks, uint32_t first_layer,
                                            uint32_t layers, const KvOptions& options) {
  return ToHandle(impl_->engine->kv_transfers().WriteLayers(internal::KvPreparedAccess::Get(blocks),
                                                            first_layer, layers, options));
}
absl::StatusOr<Transfer> Agent::ReadBlocks(std::span<const std::string> group,
                                           const KvBlocks& blocks, const KvOptions& options) {
  return ToHandle(impl_->engine->kv_transfers().Start(TransferKind::kRead, group, blocks, options));
}
absl::Status Agent::WaitLayers(const CacheName& cache, const RequestName& request, uint32_t layers,
                               Duration timeout) {
  return impl_->engine->kv().WaitLayers(cache.text, request.text, layers, timeout);
}
absl::Status Agent::DropRequest(const CacheName& cache, const RequestName& request) {
  return impl_->engine->kv().DropRequest(cache.text, request.text);
}

absl::Status Agent::LeaseBlocks(const CacheName& cache, const LeaseName& lease,
                                std::span<const uint32_t> ids, Duration hold,
                                std::string_view contents) {
  return impl_->engine->kv().LeaseBlocks(cache.text, lease.text, ids, hold, contents);
}
absl::Status Agent::RenewLease(const LeaseName& lease, Duration hold) {
  return impl_->engine->kv().RenewLease(lease.text, hold);
}
absl::Status Agent::ReleaseLease(const LeaseName& lease) {
  return impl_->engine->kv().ReleaseLease(lease.text);
}

absl::Status Agent::RevokeLease(const LeaseName& lease) {
  return impl_->engine->kv().RevokeLease(lease.text);
}
std::optional<KvEvent> Agent::PollKvEvent() {
  return impl_->engine->events().PollOne<KvEvent>(AgentEventKinds::kKv);
}
absl::StatusOr<KvCounts> Agent::CountKv() const { return impl_->engine->kv().Count(); }

size_t Agent::PollEvents(std::span<AgentEvent> events, AgentEventKinds kinds) {
  return impl_->engine->events().Poll(events, kinds);
}
absl::StatusOr<size_t> Agent::WaitEvents(std::span<AgentEvent> events, Duration timeout,
                                         AgentEventKinds kinds) {
  return impl_->engine->events().Wait(events, timeout, kinds);
}
absl::StatusOr<int> Agent::EventFd(AgentEventKinds kinds) {
  return impl_->engine->events().Fd(kinds);
}

std::optional<Notification> Agent::PollNotification() {
  return impl_->engine->events().PollOne<Notification>(AgentEventKinds::kNotification);
}
absl::StatusOr<Notification> Agent::WaitNotification(Duration timeout) {
  AgentEvent event;
  const auto count =
      impl_->engine->events().Wait(std::span(&event, 1), timeout, AgentEventKinds::kNotification);
  if (!count.ok()) return count.status();
  return std::get<Notification>(std::move(event));
}
int Agent::notification_fd() const {
  return impl_->engine->events().Fd(AgentEventKinds::kNotification).value_or(-1);
}
void Agent::OnNotification(std::function<void(Notification)> callback) {
  impl_->engine->events().SetCallback(std::move(callback));
}

absl::StatusOr<QuiesceResult> Agent::Quiesce(const QuiesceScope& scope, Duration timeout) {
  return impl_->engine->quiet().Quiesce(scope, timeout);
}
absl::StatusOr<bool> Agent::IsQuiet(QuiesceToken token) {
  return impl_->engine->quiet().IsQuiet(token);
}

absl::Status Agent::Drain(Duration timeout) { return impl_->engine->quiet().Drain(timeout); }

}  // namespace kvxfer
