// TcpBackend: listening, connecting, and its turns in Poll.

#include "src/backends/tcp/backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {
namespace {

constexpr size_t kScratchBytes = 256 * 1024;
// After looking for it this often in vain no further message is expected.
constexpr uint32_t kMaxLooks = 1024;

}  // namespace

TcpBackend::TcpBackend(const BackendContext& context, TcpOptions options)
    : options_(context.options),
      tcp_(std::move(options)),
      incarnation_(context.incarnation),
      host_(context.host),
      metadata_(context.metadata) {
  info_.name = "tcp";
  info_.capabilities = {.arrival = Arrival::kImmediate,
                        .rail_keeps_order = true,
                        .rails_fail_alone = true,
                        .needs_remote_cpu = true,
                        .serves_metadata = true,
                        .max_op_bytes = kMaxFrameBytes,
                        .max_op_pieces = kMaxFrameRuns,
                        .max_message_bytes = kMaxMessageBytes};
}

absl::StatusOr<std::unique_ptr<TcpBackend>> TcpBackend::Create(const BackendContext& context) {
  absl::StatusOr<TcpOptions> options = ReadOptions<TcpOptions>("tcp", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<TcpBackend> backend(new TcpBackend(context, *std::move(options)));
  absl::StatusOr<std::unique_ptr<net::Reactor>> reactor = net::Reactor::Create();
  if (!reactor.ok()) return Annotate(reactor.status(), "tcp");
  backend->reactor_ = *std::move(reactor);
  backend->info_.wait_fd = backend->reactor_->fd();
  if (absl::Status listening = backend->Listen(); !listening.ok()) return listening;
  backend->DescribeListeners();
  return backend;
}

absl::Status TcpBackend::Listen() {
  absl::StatusOr<std::vector<net::SocketAddress>> at =
      net::Resolve(options_.listen, kDefaultPort, net::Names::kResolve);
  if (!at.ok()) return Annotate(at.status(), "`listen` (KVXFER_LISTEN)");
  absl::StatusOr<std::unique_ptr<net::Listener>> listener =
      net::Listener::Create(reactor_.get(), this, at->front());
  if (!listener.ok()) return listener.status();
  listeners_.push_back(*std::move(listener));
  absl::StatusOr<std::vector<net::SocketAddress>> advertised =
      net::Advertised(options_, listeners_.front()->address());
  if (!advertised.ok()) return advertised.status();
  advertised_ = *std::move(advertised);
  absl::StatusOr<std::vector<LocalAddress>> local = ResolveLocal(tcp_.addresses, Sysfs());
  if (!local.ok()) return local.status();
  local_ = *std::move(local);
  for (const LocalAddress& address : local_) {
    listener = net::Listener::Create(reactor_.get(), this, address.at);
    if (!listener.ok()) {
      return Annotate(listener.status(), "`tcp.addresses` (KVXFER_TCP_ADDRESSES)");
    }
    listeners_.push_back(*std::move(listener));
  }
  return absl::OkStatus();
}

TcpBackend::~TcpBackend() {
  // Endpoints that were never reported are destroyed with their events.
  half_open_.clear();
  sink_.TakeQueue().clear();
  for (TcpEndpoint* endpoint : endpoints_) endpoint->Detach();
}

void TcpBackend::DescribeListeners() {
  net::PeerAddress own{.incarnation = incarnation_, .candidates = advertised_};
  for (size_t i = 0; i < local_.size(); ++i) {
    const net::SocketAddress at = listeners_[i + 1]->address();
    own.data.push_back({.at = at, .mbps = local_[i].mbps});
    std::string& device = info_.devices.emplace_back(at.ToString());
    if (local_[i].mbps > 0) absl::StrAppend(&device, ", ", local_[i].mbps, " Mb/s");
  }
  info_.address = net::EncodeAddress(own);
  info_.listen_address = listeners_.front()->address().ToString();
}

absl::Status TcpBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  absl::StatusOr<net::PeerAddress> peer = net::DecodeReachable(address, host_, host);
  if (!peer.ok()) return peer.status();
  return Paths::Plan(local_, *peer, tcp_.streams).status();
}

absl::StatusOr<std::unique_ptr<Endpoint>> TcpBackend::Connect(std::string_view address,
                                                              const HostIdentity& host) {
  absl::StatusOr<net::PeerAddress> peer = net::DecodeReachable(address, host_, host);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<Paths> paths = Paths::Plan(local_, *peer, tcp_.streams);
  if (!paths.ok()) return paths.status();
  auto endpoint = std::make_unique<TcpEndpoint>(this, *std::move(peer), *std::move(paths));
  endpoints_.push_back(endpoint.get());
  endpoint->Dial();
  Watch(endpoint.get());
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Registration>> TcpBackend::Register(const LocalRegion& region) {
  return regions_.Register(region, "tcp");
}

std::span<std::byte> TcpBackend::scratch() {
  if (scratch_ == nullptr) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  return {scratch_.get(), kScratchBytes};
}

void TcpBackend::Activate(TcpEndpoint* endpoint) {
  if (std::exchange(endpoint->active, true)) return;
  active_.push_back(endpoint);
}

void TcpBackend::Forget(TcpEndpoint* endpoint) {
  std::erase(endpoints_, endpoint);
  std::erase(active_, endpoint);
  std::erase(waiting_, endpoint);
  if (expected_ == endpoint) expected_ = nullptr;
  sink_.Purge(endpoint);
}

void TcpBackend::Watch(TcpEndpoint* endpoint) {
  if (!std::exchange(endpoint->timed, true)) waiting_.push_back(endpoint);
  SetTimer();
}

bool TcpBackend::ListenersHaveWork() const {
  return std::ranges::any_of(listeners_, [](const auto& each) { return each->HasWork(); });
}

void TcpBackend::Linger(net::Fd control, std::vector<net::Fd> data, std::string queued) {
  lingering_.Add(reactor_.get(), std::move(control), std::move(data), std::move(queued));
  SetTimer();
}

size_t TcpBackend::Poll(std::span<Event> out, Input input) {
  ++poll_number_;
  sink_.Begin(out);
  if (!sink_.full()) {
    if (input == Input::kAll) reactor_->Collect();
    if (input == Input::kLikely) ReadExpected();
    if (const std::optional<Time> next = NextDeadline(); next && *next <= Now()) OnDeadlines();
    for (const auto& listener : listeners_) listener->Work();
    WorkEndpoints();
    lingering_.Work();
    handouts_.Work();
    SetTimer();
  }
  return sink_.End();
}

// The most likely input is a message of the endpoint that brought the last one.
void TcpBackend::ReadExpected() {
  if (expected_ == nullptr) return;
  if (++looks_ > kMaxLooks) {
    expected_ = nullptr;
    return;
  }
  expected_->ReadControl();
}

void TcpBackend::WorkEndpoints() {
  const size_t count = active_.size();
  // Another endpoint goes first in each Poll. When the sink is full, the endpoints that are left
  // keep their work.
  const size_t first = turn_++;
  for (size_t i = 0; i < count && !sink_.full(); ++i) active_[(first + i) % count]->Work();
  std::erase_if(active_, [](TcpEndpoint* endpoint) {
    endpoint->active = endpoint->HasWork();
    return !endpoint->active;
  });
  std::erase_if(waiting_, [](TcpEndpoint* endpoint) {
    endpoint->timed = endpoint->deadline().has_value();
    return !endpoint->timed;
  });
}

bool TcpBackend::Arm() {
  if (sink_.waiting() || ListenersHaveWork() || lingering_.HasWork() || handouts_.HasWork()) {
    return false;
  }
  return std::none_of(active_.begin(), active_.end(),
                      [](TcpEndpoint* endpoint) { return endpoint->HasWork(); });
}

std::optional<Time> TcpBackend::NextDeadline() const {
  std::optional<Time> next = Earlier(lingering_.deadline(), handouts_.deadline());
  for (const auto& listener : listeners_) next = Earlier(next, listener->deadline());
  for (const TcpEndpoint* endpoint : waiting_) next = Earlier(next, endpoint->deadline());
  return next;
}

void TcpBackend::OnDeadlines() {
  const Time now = Now();
  for (const auto& listener : listeners_) listener->OnDeadline(now);
  const auto late = [now](const TcpEndpoint* endpoint) {
    return endpoint->deadline() && *endpoint->deadline() <= now;
  };
  // A copy, because OnDeadline may change waiting_.
  for (TcpEndpoint* endpoint : std::vector<TcpEndpoint*>(waiting_)) {
    if (late(endpoint)) endpoint->OnDeadline();
  }
  // An endpoint that went down before it was reported belongs to no agent.
  std::erase_if(half_open_, [](const auto& endpoint) { return endpoint->down(); });
  lingering_.OnDeadline(now);
  handouts_.OnDeadline(now);
}

}  // namespace kvxfer::tcp
