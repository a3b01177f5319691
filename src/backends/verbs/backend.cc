#include "src/backends/verbs/backend.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/accepted.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/port_choice.h"
#include "src/core/log.h"
#include "src/core/memory_node.h"
#include "src/core/strings.h"

namespace kvxfer::verbs {
namespace {

constexpr size_t kMaxOpRuns = 256;

}  // namespace

VerbsBackend::VerbsBackend(const BackendContext& context, std::unique_ptr<Ibv> ibv)
    : options_(context.options),
      incarnation_(context.incarnation),
      host_(context.host),
      ibv_(std::move(ibv)),
      setups_(options_.verbs, &destroyer_) {}

absl::StatusOr<std::unique_ptr<VerbsBackend>> VerbsBackend::Create(const BackendContext& context,
                                                                   std::unique_ptr<Ibv> ibv,
                                                                   Topology topology) {
  std::unique_ptr<VerbsBackend> backend(new VerbsBackend(context, std::move(ibv)));
  absl::StatusOr<std::unique_ptr<net::Reactor>> reactor = net::Reactor::Create();
  if (!reactor.ok()) return reactor.status();
  backend->reactor_ = *std::move(reactor);
  if (absl::Status status = backend->setups_.Open(backend->reactor_.get()); !status.ok()) {
    return status;
  }
  if (absl::Status status = backend->OpenDevices(std::move(topology)); !status.ok()) return status;
  if (absl::Status status = backend->Listen(); !status.ok()) return status;
  backend->capabilities_ = {.arrival = Arrival::kImmediate,
                            .rail_keeps_order = backend->ordered(),
                            .rails_fail_alone = true,
                            .needs_remote_cpu = false,
                            .max_op_bytes = kMaxOpBytes,
                            .max_op_runs = backend->MaxOpRuns(),
                            .max_message_bytes = net::kMaxMessageBytes,
                            .max_arrivals = backend->MaxArrivals()};
  return backend;
}

absl::Status VerbsBackend::OpenDevices(Topology topology) {
  std::vector<std::string> names;
  if (const int error = ibv_->ListDevices(names); error != 0) {
    return absl::UnavailableError(
        absl::StrCat(ErrnoText("ibv_get_device_list", error),
                     "; the kernel has no RDMA support loaded (modprobe ib_uverbs)"));
  }
  if (names.empty()) {
    return absl::UnavailableError("there is no RDMA device (rdma link shows them)");
  }
  const std::vector<std::string> asked = options_.verbs.devices;
  if (!asked.empty() || !options_.verbs.fabrics.empty() || !topology.ports.empty()) {
    AddMissing(*ibv_, names, topology);
  }
  absl::StatusOr<VerbsOptions> chosen = ChoosePorts(options_.verbs, &topology);
  if (!chosen.ok()) return chosen.status();
  options_.verbs = *std::move(chosen);
  absl::Status why;
  queue_depth_ = options_.verbs.queue_depth;
  for (const std::string& name : names) {
    const bool wanted = std::ranges::any_of(options_.verbs.devices, [&](const std::string& port) {
      return port.starts_with(name + ":");
    });
    if ((!options_.verbs.devices.empty() && !wanted) || devices_.size() == kMaxDevices) continue;
    const auto ordinal = static_cast<uint8_t>(devices_.size());
    absl::StatusOr<std::unique_ptr<Device>> device =
        Device::Open(ibv_.get(), this, reactor_.get(), name, ordinal, options_.verbs);
    if (!device.ok()) {
      why.Update(device.status());
      Log(LogLevel::kInfo, "verbs: not used: {}", ToStd(device.status().message()));
      continue;
    }
    queue_depth_ = std::min(queue_depth_, static_cast<uint32_t>((*device)->attr().max_qp_wr));
    devices_.push_back(*std::move(device));
  }
  // Those that are down now may come up later.
  for (const bool active : {true, false}) {
    for (const auto& device : devices_) {
      for (size_t i = 0; i < device->ports().size() && ports_.size() < kMaxPorts; ++i) {
        if (device->ports()[i].active == active) ports_.push_back({device.get(), i});
      }
    }
  }
  if (ports_.empty() && why.ok()) {
    why = absl::UnavailableError(
        "libibverbs has none of the RDMA devices that could be used; install ibverbs-providers");
  }
  if (ports_.empty()) return why;
  std::vector<std::string> used;
  std::vector<Nearness::Port> used_of;
  for (const PortRef& ref : ports_) {
    used.push_back(ref.port().info.name);
    used_of.push_back({.name = used.back(), .device = ref.device->ordinal()});
  }
  nearness_ = Nearness(topology, used_of);
  absl::Status named = CheckNamed(asked, options_.verbs, topology, used, why);
  if (!named.ok()) return named;
  if (!ports_.front().port().active) {
    return absl::UnavailableError(absl::StrCat("no port is active: ", WhyNone()));
  }
  if (queue_depth_ < 16) {
    return absl::InvalidArgumentError("`verbs.queue_depth` is below 16, or the device's limit is");
  }
  return absl::OkStatus();
}

// Without order an immediate says nothing of other requests, so an op is one.
size_t VerbsBackend::MaxOpRuns() const {
  return ordered() ? std::min<size_t>(kMaxOpRuns, queue_depth_ - 2) : 1;
}

// Which device an immediate comes to is its initiator's choice.
size_t VerbsBackend::MaxArrivals() const {
  size_t most = SIZE_MAX;
  for (const auto& device : devices_) most = std::min<size_t>(most, device->max_arrivals());
  return most;
}

absl::Status VerbsBackend::PortRef::why() const {
  if (device->broken()) return device->why_broken();
  if (port().active || !port().why.ok()) return port().why;
  return absl::UnavailableError(absl::StrCat(port().info.name, ": the port is not active"));
}

std::string VerbsBackend::WhyNone() {
  std::string out;
  for (const PortRef& ref : ports_) {
    const absl::Status why = ref.device->Refresh(ref.index);
    absl::StrAppend(&out, out.empty() ? "" : "; ", why.message());
  }
  return out;
}

absl::Status VerbsBackend::Listen() {
  const bool own = !options_.verbs.listen.empty();
  absl::StatusOr<std::vector<net::SocketAddress>> at = net::Resolve(
      own ? options_.verbs.listen : options_.listen, kDefaultPort, net::Names::kResolve);
  if (!at.ok()) {
    return Annotate(at.status(),
                    own ? "`verbs.listen` (KVXFER_VERBS_LISTEN)" : "`listen` (KVXFER_LISTEN)");
  }
  if (!own) at->front().set_port(0);
  absl::StatusOr<std::unique_ptr<net::Listener>> listener =
      net::Listener::Create(reactor_.get(), this, at->front());
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  AgentOptions told = options_;
  // A port that is told to peers is that of tcp.
  if (const size_t colon = told.advertise.rfind(':');
      colon != std::string::npos && told.advertise.find(']', colon) == std::string::npos &&
      (told.advertise.find(':') == colon || told.advertise[colon - 1] == ']')) {
    told.advertise.resize(colon);
  }
  absl::StatusOr<std::vector<net::SocketAddress>> advertised =
      net::Advertised(told, listener_->address());
  if (!advertised.ok()) return advertised.status();
  advertised_ = *std::move(advertised);
  return absl::OkStatus();
}

VerbsBackend::~VerbsBackend() {
  // Endpoints that were never handed out go with the events that hold them.
  sink_.TakeQueue().clear();
  for (Link* link : Links()) link->Detach();
  setups_.Stop();
  destroyer_.Close();
  dialled_scratch_.Close();
  accepted_scratch_.Close();
  for (VerbsRegistration* registration : std::exchange(registrations_, {})) registration->Close();
  listener_.reset();
  lingering_.Clear();
}

std::string VerbsBackend::Address() const {
  const std::string control = net::EncodeAddress({incarnation_, advertised_});
  return EncodeTold({.control = control, .ports = {.ports = PortInfos()}});
}
std::string VerbsBackend::ListenAddress() const { return listener_->address().ToString(); }

absl::StatusOr<net::PeerAddress> VerbsBackend::Find(std::string_view address,
                                                    const HostIdentity& host) const {
  absl::StatusOr<Told> told = DecodeTold(address);
  if (!told.ok()) return told.status();
  absl::StatusOr<net::PeerAddress> peer = net::DecodeReachable(told->control, host_, host);
  if (!peer.ok()) return peer;
  if (absl::Status talk = CheckPairs(PortInfos(), told->ports.ports); !talk.ok()) {
    return absl::FailedPreconditionError(talk.message());
  }
  return peer;
}

absl::Status VerbsBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  return Find(address, host).status();
}

absl::StatusOr<std::unique_ptr<Endpoint>> VerbsBackend::Connect(std::string_view address,
                                                                const HostIdentity& host) {
  absl::StatusOr<net::PeerAddress> peer = Find(address, host);
  if (!peer.ok()) return peer.status();
  absl::StatusOr<Scratch::Slot> scratch = dialled_scratch_.Take(devices_);
  if (!scratch.ok()) return scratch.status();
  auto link = std::make_unique<DialledLink>(this, *std::move(peer), *scratch);
  links_.push_back(link.get());
  link->Dial();
  SetTimer();
  return link;
}

absl::StatusOr<std::unique_ptr<Prepared>> VerbsBackend::Prepare(const MemorySpan& span,
                                                                Access access) {
  if (span.kind != MemoryKind::kHost) {
    return absl::InvalidArgumentError("verbs: only host memory can be registered");
  }
  if (span.data == nullptr || span.bytes == 0) {
    return absl::InvalidArgumentError("verbs: a region needs an address and bytes");
  }
  auto memory = std::make_unique<DeviceMemory>();
  if (absl::Status status = memory->Register(span, access, devices_); !status.ok()) return status;
  return memory;
}

absl::StatusOr<std::unique_ptr<Registration>> VerbsBackend::Register(const LocalRegion& region) {
  if (region.rkey == 0) return absl::InvalidArgumentError("verbs: a region needs an rkey");
  std::unique_ptr<Prepared> mine;
  Prepared* prepared = region.prepared;
  if (prepared == nullptr) {
    absl::StatusOr<std::unique_ptr<Prepared>> made = Prepare(region.span, region.access);
    if (!made.ok()) return made.status();
    mine = *std::move(made);
    prepared = mine.get();
  }
  // By now the devices have every page of it somewhere.
  const std::optional<int> node =
      nearness_.tells() ? NodeOfMemory(region.span.data, region.span.bytes) : std::nullopt;
  auto registration = std::make_unique<VerbsRegistration>(
      this, region.rkey, std::move(*static_cast<DeviceMemory*>(prepared)), region.id,
      nearness_.Of(node));
  registrations_.insert(registration.get());
  if (registration->why_missing().ok()) return registration;
  Log(LogLevel::kWarning, "verbs: region {} goes without some devices: {}",
      static_cast<uint32_t>(region.id), ToStd(registration->why_missing().message()));
  for (const auto& device : devices_) {
    const absl::Status why = CheckRegions(*device);
    if (why.ok()) continue;
    for (Link* link : Links()) link->OnUncovered(*device, why);
  }
  return registration;
}

absl::Status VerbsBackend::CheckRegions(const Device& device) const {
  for (const VerbsRegistration* registration : registrations_) {
    if (registration->has(device.ordinal())) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "region ", static_cast<uint32_t>(registration->id()), " is not registered with ",
        device.name(), ": ", registration->why_missing().message()));
  }
  return absl::OkStatus();
}

void VerbsBackend::OnPreamble(net::Fd fd, const net::Preamble& preamble, const std::string& from) {
  net::Welcome welcome;
  if (preamble.version != net::kStreamVersion) {
    welcome.verdict = net::Verdict::kWrongVersion;
  } else if (preamble.target != incarnation_) {
    welcome.verdict = net::Verdict::kWrongIncarnation;
  } else if (preamble.service != net::Service::kVerbs || preamble.role != net::Role::kControl) {
    reactor_->Remove(fd.get());
    return;
  }
  net::Answer(fd, welcome);
  if (welcome.verdict != net::Verdict::kJoin) {
    reactor_->Remove(fd.get());
    return;
  }
  net::SetUserTimeout(fd.get(), net::Dialler::kUserTimeoutMs);
  net::TuneIfLocal(fd.get());
  auto link = std::make_unique<AcceptedLink>(this, std::move(fd), from);
  links_.push_back(link.get());
  AcceptedLink* const accepted = link.get();
  sink_.Emit({.kind = EventKind::kAccepted, .endpoint = accepted, .accepted = std::move(link)});
  accepted->Begin();
  Activate(accepted);
}

void VerbsBackend::Activate(Link* link) {
  if (std::exchange(link->active, true)) return;
  active_.push_back(link);
}

void VerbsBackend::Forget(Link* link) {
  std::erase(links_, link);
  std::erase(active_, link);
  sink_.Purge(link);
  timers_changed_ = true;
}

void VerbsBackend::Linger(net::Fd control, std::string queued) {
  if (!control.valid()) return;
  lingering_.Add(reactor_.get(), std::move(control), {}, std::move(queued));
  timers_changed_ = true;
}

std::optional<uint16_t> VerbsBackend::TakeSlot(Rail* rail, uint64_t& first) {
  if (free_slots_.empty()) {
    if (slots_.size() > UINT16_MAX) return std::nullopt;
    free_slots_.push_back(static_cast<uint16_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint16_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].rail = rail;
  first = slots_[slot].next;
  return slot;
}

void VerbsBackend::FreeSlot(uint16_t slot, uint64_t next) {
  slots_[slot] = {.rail = nullptr, .next = next};
  free_slots_.push_back(slot);
}

uint64_t VerbsBackend::ReceiverId(uint32_t number, const Device& device) {
  return uint64_t{device.ordinal()} << 32 | number;
}

void VerbsBackend::AddReceiver(uint32_t number, const Device& device, AcceptedLink* link,
                               uint32_t rail) {
  receivers_[ReceiverId(number, device)] = {.link = link, .rail = rail};
}

void VerbsBackend::RemoveReceiver(uint32_t number, const Device& device) {
  receivers_.erase(ReceiverId(number, device));
}

std::vector<PortInfo> VerbsBackend::PortInfos() const {
  std::vector<PortInfo> out;
  for (const PortRef& ref : ports_) out.push_back(ref.port().info);
  return out;
}

}  // namespace kvxfer::verbs
