// TcpBackend: listening, connecting, incoming streams, and its turns in Poll.

#include "src/backends/tcp/backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/factory.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {

TcpBackend::TcpBackend(const BackendContext& context, TcpOptions options)
    : options_(context.options),
      tcp_(std::move(options)),
      host_(context.host),
      metadata_(context.metadata),
      hub_({.backend = "tcp",
            .service = kService,
            .incarnation = context.incarnation,
            .connect_timeout = options_.connect_timeout,
            .has_agent_port = true,
            .has_data_streams = true},
           this) {
  info_.name = "tcp";
  info_.capabilities = {.arrival = Arrival::kImmediate,
                        .rail_keeps_order = true,
                        .rails_fail_alone = true,
                        .needs_remote_cpu = true,
                        .serves_metadata = true,
                        .max_op_bytes = kMaxFrameBytes,
                        .max_op_pieces = kMaxFrameRuns,
                        .max_message_bytes = kMaxMessageBytes,
                        .carrier = ControlCarrier::kTcp};
}

absl::StatusOr<std::unique_ptr<Backend>> TcpBackend::Create(const BackendContext& context) {
  absl::StatusOr<TcpOptions> options = ReadOptions<TcpOptions>("tcp", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<TcpBackend> backend(new TcpBackend(context, *std::move(options)));
  if (absl::Status open = backend->hub_.Open(); !open.ok()) return open;
  backend->threads_ = std::make_unique<DataThreads>(backend->tcp_.data_threads, &backend->regions_,
                                                    &backend->hub_.reactor());
  if (absl::Status listening = backend->Listen(); !listening.ok()) return listening;
  backend->info_.wait_fd = backend->hub_.fd();
  return backend;
}

// At `listen`, and at each of the addresses for data streams.
absl::Status TcpBackend::Listen() {
  if (absl::Status listening = hub_.Listen(options_, "", ""); !listening.ok()) return listening;
  absl::StatusOr<std::vector<LocalAddress>> local = ResolveLocal(tcp_.addresses, Sysfs());
  if (!local.ok()) return local.status();
  local_ = *std::move(local);
  net::PeerAddress own = hub_.Own();
  for (const LocalAddress& address : local_) {
    absl::StatusOr<net::SocketAddress> at = hub_.ListenAlso(address.at);
    if (!at.ok()) return Annotate(at.status(), "`tcp.addresses` (KVXFER_TCP_ADDRESSES)");
    own.data.push_back({.at = *at, .mbps = address.mbps});
    std::string& device = info_.devices.emplace_back(at->ToString());
    if (address.mbps > 0) absl::StrAppend(&device, ", ", address.mbps, " Mb/s");
  }
  info_.address = net::EncodeAddress(own);
  info_.listen_address = hub_.ListenAddress();
  return absl::OkStatus();
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
  hub_.Dial(endpoint.get());
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Registration>> TcpBackend::Register(const LocalRegion& region) {
  return regions_.Register(region, "tcp");
}

void TcpBackend::OnRegionClosed(const net::Region* region) {
  std::vector<std::pair<TcpEndpoint*, uint32_t>> written;
  {
    const std::vector<DataThread::Hold> holds = threads_->Forget(*region);
    for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
      auto* const of = static_cast<TcpEndpoint*>(endpoint);
      if (const auto rail = of->ReleaseRegion(region)) written.emplace_back(of, *rail);
    }
  }
  for (const auto& [endpoint, rail] : written) endpoint->OnRegionWritten(rail);
}

std::span<std::byte> TcpBackend::scratch() {
  if (scratch_ == nullptr) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
  return {scratch_.get(), kScratchBytes};
}

size_t TcpBackend::Poll(std::span<Event> out, Input input) {
  if (hub_.Begin(out, input == Input::kAll)) {
    threads_->Deliver(hub_.sink());
    if (input == Input::kLikely) hub_.ReadExpected();
    hub_.Work();
    handouts_.Work();
  }
  return hub_.End();
}

bool TcpBackend::Arm() {
  if (hub_.HasWork() || handouts_.HasWork() || !threads_->Arm()) return false;
  hub_.SetTimer();
  return true;
}

std::unique_ptr<net::ControlEndpoint> TcpBackend::Accept(net::Incoming incoming) {
  return std::make_unique<TcpEndpoint>(this, std::move(incoming));
}

bool TcpBackend::TakeStream(net::Fd& fd, const Preamble& preamble, const std::string& from) {
  if (preamble.service == net::Service::kMetadata) {
    OnMetadataPreamble(fd, from);
  } else if (preamble.service == kService) {
    OnDataPreamble(fd, preamble);
  } else {
    hub_.reactor().Remove(fd.get());
  }
  return true;
}

void TcpBackend::OnDataPreamble(net::Fd& fd, const Preamble& preamble) {
  const auto it = std::ranges::find_if(hub_.endpoints(), [&](net::ControlEndpoint* endpoint) {
    return static_cast<TcpEndpoint*>(endpoint)->Expects(preamble);
  });
  // A data stream for an endpoint that is gone, or of another incarnation, gets no answer: its peer
  // sees the close.
  if (it == hub_.endpoints().end() || preamble.target != hub_.settings().incarnation ||
      !static_cast<TcpEndpoint*>(*it)->Join(preamble, fd)) {
    hub_.reactor().Remove(fd.get());
  }
}

void TcpBackend::OnMetadataPreamble(net::Fd& fd, const std::string& from) {
  std::shared_ptr<const std::string> metadata;
  WelcomeCode code = WelcomeCode::kNotServed;
  if (metadata_ && !handouts_.MakeSpace(Now())) {
    code = WelcomeCode::kBusy;
  } else if (metadata_) {
    metadata = metadata_();
    code = metadata == nullptr ? WelcomeCode::kClosing : WelcomeCode::kJoin;
  }
  Log(LogLevel::kDebug, "tcp: metadata asked for by {}: answer {}", from, static_cast<int>(code));
  if (metadata == nullptr) return hub_.Refuse(fd, code);
  handouts_.Add(&hub_.reactor(), std::move(fd), std::move(metadata));
}

}  // namespace kvxfer::tcp

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeTcpBackend(const BackendContext& context) {
  return tcp::TcpBackend::Create(context);
}

}  // namespace kvxfer
