// LibfabricBackend: construction, the agent's calls and Poll; the factory.

#include "src/backends/libfabric/backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/accepted.h"
#include "src/backends/libfabric/dialled.h"
#include "src/backends/libfabric/factory.h"
#include "src/backends/libfabric/frames.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace libfabric {
namespace {

// The host part of the address to listen at; empty: any.
absl::StatusOr<std::string> ListenHost(const AgentOptions& agent, const LibfabricOptions& options) {
  const std::string& text = options.listen.empty() ? agent.listen : options.listen;
  absl::StatusOr<std::vector<net::SocketAddress>> at =
      net::Resolve(text, kDefaultPort, net::Names::kResolve);
  if (!at.ok()) return at.status();
  return at->front().IsWildcard() ? std::string() : at->front().Host();
}

const LibfabricEndpoint& EndpointOf(const net::ControlEndpoint* endpoint) {
  return static_cast<const LibfabricEndpoint&>(*endpoint);
}

}  // namespace

LibfabricBackend::LibfabricBackend(const BackendContext& context)
    : options_(context.options),
      host_(context.host),
      hub_({.backend = "libfabric",
            .service = net::Service{2},
            .incarnation = context.incarnation,
            .connect_timeout = options_.connect_timeout},
           this) {}

absl::StatusOr<std::unique_ptr<Backend>> LibfabricBackend::Create(const BackendContext& context) {
  const auto options = ReadOptions<LibfabricOptions>("libfabric", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<LibfabricBackend> backend(new LibfabricBackend(context));
  if (absl::Status status = backend->hub_.Open(); !status.ok()) return status;
  const AgentOptions& agent = backend->options_;
  absl::StatusOr<std::string> host = ListenHost(agent, *options);
  if (!host.ok()) return host.status();
  absl::StatusOr<std::vector<std::unique_ptr<Domain>>> domains = Domain::OpenAll(*options, *host);
  if (!domains.ok()) return domains.status();
  backend->domains_ = *std::move(domains);
  if (absl::Status status = backend->hub_.Listen(agent, options->listen,
                                                 "`libfabric.listen` (KVXFER_LIBFABRIC_LISTEN)");
      !status.ok()) {
    return status;
  }
  const std::string control = backend->hub_.Address();
  backend->info_ = {
      .name = "libfabric",
      .capabilities = backend->Limits(),
      .address = EncodeMetadataAddress({.provider = backend->provider(), .control = control}),
      .listen_address = backend->hub_.ListenAddress(),
      .wait_fd = backend->hub_.fd()};
  return backend;
}

Capabilities LibfabricBackend::Limits() const {
  Capabilities caps = {.arrival = Arrival::kImmediate,
                       // GPU memory that a domain does not accept fails in Register, and the agent
                       // then stages it.
                       .memory_kinds = BitOf(MemoryKind::kHost) | BitOf(MemoryKind::kCuda),
                       .rail_keeps_order = false,
                       .rails_fail_alone = true,
                       .needs_remote_cpu = true,
                       .max_op_bytes = kMaxOpBytes,
                       .max_op_pieces = kMaxPieces,
                       .max_message_bytes = net::kMaxMessageBytes,
                       .carrier = ControlCarrier::kTcp};
  // The weakest domain decides, because the agent may use any rail for any op.
  for (const auto& domain : domains_) {
    caps.max_op_bytes = std::min(caps.max_op_bytes, domain->info().ep_attr->max_msg_size);
    caps.max_op_pieces = std::min(caps.max_op_pieces, domain->max_pieces());
  }
  return caps;
}

LibfabricBackend::~LibfabricBackend() {
  // Closes the fabric endpoints of all connections, which use the registrations; those go before
  // the domains.
  hub_.Close();
  registrations_.Close();
}

std::string LibfabricBackend::provider() const {
  return domains_.front()->info().fabric_attr->prov_name;
}

absl::StatusOr<net::PeerAddress> LibfabricBackend::Find(std::string_view address,
                                                        const HostIdentity& host) const {
  absl::StatusOr<MetadataAddress> known = DecodeMetadataAddress(address);
  if (!known.ok()) return known.status();
  // Endpoints of different providers cannot reach each other.
  if (known->provider != provider()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer uses the libfabric provider ", known->provider, ", and this side ", provider()));
  }
  const absl::Status reach = CheckReach(provider(), host.SameHost(host_));
  if (!reach.ok()) return reach;
  return net::DecodeReachable(known->control, host_, host);
}

absl::Status LibfabricBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  return Find(address, host).status();
}

absl::StatusOr<std::unique_ptr<Endpoint>> LibfabricBackend::Connect(std::string_view address,
                                                                    const HostIdentity& host) {
  absl::StatusOr<net::PeerAddress> peer = Find(address, host);
  if (!peer.ok()) return peer.status();
  auto endpoint = std::make_unique<LibfabricDialledEndpoint>(this, *std::move(peer));
  hub_.Dial(endpoint.get());
  return endpoint;
}

std::unique_ptr<net::ControlEndpoint> LibfabricBackend::Accept(net::Incoming incoming) {
  return std::make_unique<LibfabricAcceptedEndpoint>(this, std::move(incoming.control),
                                                     std::move(incoming.from));
}

absl::StatusOr<std::unique_ptr<Registration>> LibfabricBackend::Register(
    const LocalRegion& region) {
  if (region.span.data == nullptr || region.span.bytes == 0 || region.rkey == 0) {
    return absl::InvalidArgumentError("libfabric: a region needs an address, bytes and an rkey");
  }
  absl::StatusOr<std::unique_ptr<LibfabricRegistration>> made =
      LibfabricRegistration::Make(region, domains_, &registrations_);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Registration>(*std::move(made));
}

void LibfabricBackend::OnRead(const Endpoint* endpoint, uint64_t op) {
  registrations_.TakeAdded();
  arrival_flusher_.OnRead(endpoint, op);
}

// Completion queues are read whatever `input` is: that takes no system call of ours.
size_t LibfabricBackend::Poll(std::span<Event> out, Input input) {
  if (hub_.Begin(out, input == Input::kAll)) {
    for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
      // Also while nothing is readable: completion queues have no descriptor.
      if (EndpointOf(endpoint).busy() && !hub_.sink().full()) {
        static_cast<LibfabricEndpoint*>(endpoint)->PollData();
      }
    }
    for (const auto& domain : domains_) domain->ReadEvents();
    looked_ = Now();
    hub_.Work();
  }
  const size_t events = hub_.End();
  // A region may have been registered, and written by a peer, since this Poll began.
  registrations_.TakeAdded();
  // Flushes GPU memory before the agent sees the events that say what was written.
  return arrival_flusher_.Show(out.first(events), "libfabric");
}

bool LibfabricBackend::Arm() {
  if (hub_.HasWork()) return false;
  const auto unread = [](const net::ControlEndpoint* endpoint) {
    return EndpointOf(endpoint).busy() && EndpointOf(endpoint).unread();
  };
  if (std::ranges::any_of(hub_.endpoints(), unread)) return false;
  // Rest may queue frames, hence the second look at HasWork.
  for (net::ControlEndpoint* endpoint : hub_.endpoints())
    static_cast<LibfabricEndpoint*>(endpoint)->Rest();
  hub_.SetTimer();
  return !hub_.HasWork();
}

std::optional<Time> LibfabricBackend::deadline() const {
  const auto busy = [](const net::ControlEndpoint* endpoint) {
    return EndpointOf(endpoint).busy();
  };
  if (std::ranges::none_of(hub_.endpoints(), busy)) return std::nullopt;
  // The timer wakes the agent for the next look at the completion queues.
  return looked_ + kLook;
}

}  // namespace libfabric

absl::StatusOr<std::unique_ptr<Backend>> MakeLibfabricBackend(const BackendContext& context) {
  return libfabric::LibfabricBackend::Create(context);
}

}  // namespace kvxfer
