#include "src/backends/verbs/backend.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/accepted.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/port_choice.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/cuda/flush.h"
#include "src/transport/host/memory_node.h"

namespace kvxfer::verbs {
namespace {

constexpr size_t kMaxOpPieces = 256;

}  // namespace

VerbsBackend::VerbsBackend(const BackendContext& context, VerbsOptions options,
                           std::unique_ptr<Ibv> ibv, Sysfs sysfs)
    : options_(std::move(options)),
      host_(context.host),
      control_(context.options.control),
      sysfs_(std::move(sysfs)),
      ibv_(std::move(ibv)),
      hub_({.backend = "verbs",
            .service = net::Service{1},
            .incarnation = context.incarnation,
            .connect_timeout = context.options.connect_timeout},
           this),
      setups_(options_, &destroyer_) {}

absl::StatusOr<std::unique_ptr<VerbsBackend>> VerbsBackend::Create(const BackendContext& context,
                                                                   std::unique_ptr<Ibv> ibv,
                                                                   Topology topology, Sysfs sysfs) {
  absl::StatusOr<VerbsOptions> options = ReadOptions<VerbsOptions>("verbs", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<VerbsBackend> backend(
      new VerbsBackend(context, *std::move(options), std::move(ibv), std::move(sysfs)));
  if (absl::Status status = backend->hub_.Open(); !status.ok()) return status;
  if (absl::Status status = backend->setups_.Open(&backend->hub_.reactor()); !status.ok()) {
    return status;
  }
  if (absl::Status status = backend->OpenDevices(std::move(topology)); !status.ok()) return status;
  if (absl::Status status = backend->hub_.Listen(context.options, backend->options_.listen,
                                                 "`verbs.listen` (KVXFER_VERBS_LISTEN)");
      !status.ok()) {
    return status;
  }
  backend->info_ = {
      .name = "verbs",
      .capabilities = {.arrival = Arrival::kImmediate,
                       .memory_kinds = BitOf(MemoryKind::kHost) | BitOf(MemoryKind::kCuda),
                       .rail_keeps_order = backend->ordered(),
                       .rails_fail_alone = true,
                       .needs_remote_cpu = false,
                       .max_op_bytes = kMaxOpBytes,
                       .max_op_pieces = backend->MaxOpPieces(),
                       .max_message_bytes = net::kMaxMessageBytes,
                       .carrier = backend->CheckCarrier().ok() ? ControlCarrier::kRdma
                                                               : ControlCarrier::kTcp,
                       .max_arrivals = backend->MaxArrivals()},
      .listen_address = backend->hub_.ListenAddress(),
      .wait_fd = backend->hub_.fd()};
  backend->DescribePorts();
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
  const std::vector<std::string> asked = options_.devices;
  if (!asked.empty() || !options_.fabrics.empty() || !topology.ports.empty()) {
    AddMissing(*ibv_, names, topology);
  }
  absl::StatusOr<VerbsOptions> chosen = ChoosePorts(options_, &topology);
  if (!chosen.ok()) return chosen.status();
  options_ = *std::move(chosen);
  absl::Status why;
  queue_depth_ = options_.queue_depth;
  for (const std::string& name : names) {
    const bool wanted = std::ranges::any_of(
        options_.devices, [&](const std::string& port) { return port.starts_with(name + ":"); });
    if ((!options_.devices.empty() && !wanted) || devices_.size() == kMaxDevices) continue;
    const auto ordinal = static_cast<uint8_t>(devices_.size());
    absl::StatusOr<std::unique_ptr<Device>> device =
        Device::Open(ibv_.get(), this, &hub_.reactor(), name, ordinal, options_);
    if (!device.ok()) {
      why.Update(device.status());
      Log(LogLevel::kInfo, "verbs: not used: {}", ToStd(device.status().message()));
      continue;
    }
    queue_depth_ = std::min(queue_depth_, static_cast<uint32_t>((*device)->attr().max_qp_wr));
    messages_.Add(device->get(), CheckCarrier().ok());
    devices_.push_back(*std::move(device));
  }
  // Ports that are down now may come up later; they come after the active ones.
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
  absl::Status named = CheckNamed(asked, options_, topology, used, why);
  if (!named.ok()) return named;
  if (!ports_.front().port().active) {
    return absl::UnavailableError(absl::StrCat("no port is active: ", WhyNone()));
  }
  if (queue_depth_ < 16) {
    return absl::InvalidArgumentError("`verbs.queue_depth` is below 16, or the device's limit is");
  }
  return absl::OkStatus();
}

absl::Status VerbsBackend::CheckCarrier() const {
  if (control_ == ControlCarrier::kTcp) {
    return absl::FailedPreconditionError(
        "`control` (KVXFER_CONTROL) is tcp; set it to auto or rdma at both sides");
  }
  if (ordered()) return absl::OkStatus();
  return absl::FailedPreconditionError("the devices keep no order, which messages need");
}

// On an unordered queue pair an immediate says nothing about other requests, so an op is a single
// request there.
size_t VerbsBackend::MaxOpPieces() const {
  // Two requests are kept for the rail's own use (VerbsRail::Post).
  return ordered() ? std::min<size_t>(kMaxOpPieces, queue_depth_ - 2) : 1;
}

// The initiator chooses the device that an immediate arrives at, so the smallest device limits all.
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

VerbsBackend::~VerbsBackend() {
  hub_.Close();
  setups_.Stop();
  destroyer_.Close();
  messages_.Close();
  dialled_scratch_.Close();
  accepted_scratch_.Close();
  registrations_.Close();
}

void VerbsBackend::DescribePorts() {
  const std::string control = hub_.Address();
  info_.address = EncodeMetadataAddress({.control = control, .ports = {.ports = PortInfos()}});
  info_.devices.clear();
  for (const PortRef& ref : ports_) {
    std::string& device = info_.devices.emplace_back(ref.port().info.name);
    if (ref.port().info.mbps > 0) {
      absl::StrAppend(&device, ", ", ref.port().info.mbps / 1000, " Gb/s");
    }
    const absl::Status why = ref.why();
    if (!why.ok()) absl::StrAppend(&device, ", not used: ", why.message());
  }
}

absl::StatusOr<net::PeerAddress> VerbsBackend::Find(std::string_view address,
                                                    const HostIdentity& host) const {
  absl::StatusOr<MetadataAddress> told = DecodeMetadataAddress(address);
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
  auto endpoint = std::make_unique<VerbsDialledEndpoint>(this, *std::move(peer), *scratch);
  hub_.Dial(endpoint.get());
  return endpoint;
}

absl::StatusOr<DeviceMemory> VerbsBackend::RegisterMemory(const LocalRegion& region) const {
  const MemorySpan& span = region.span;
  if (span.data == nullptr || span.bytes == 0) {
    return absl::InvalidArgumentError("verbs: a region needs an address and bytes");
  }
  DeviceMemory memory;
  absl::Status status;
  if (span.kind == MemoryKind::kHost) {
    status = memory.Register(span, region.access, devices_);
  } else {
    // On an unordered queue pair an op is one request, which a boundary between parts must not cut
    // in two.
    absl::StatusOr<GpuMemory> gpu = ExamineGpuMemory(span, sysfs_, ordered());
    status = gpu.ok() ? memory.Register(*gpu, region.access, devices_) : gpu.status();
  }
  if (!status.ok()) return status;
  return memory;
}

Penalties VerbsBackend::PenaltiesOf(const DeviceMemory& memory, const MemorySpan& span) const {
  if (memory.gpu() != nullptr) return nearness_.OfGpu(memory.gpu()->pci, memory.gpu()->numa_node);
  if (!nearness_.tells()) return {};
  // Registration has touched every page, so each is on some node by now.
  return nearness_.Of(NodeOfMemory(span.data, span.bytes));
}

// On any thread: besides registrations_.Add it reads only what is constant after Create.
absl::StatusOr<std::unique_ptr<Registration>> VerbsBackend::Register(const LocalRegion& region) {
  if (region.rkey == 0) return absl::InvalidArgumentError("verbs: a region needs an rkey");
  absl::StatusOr<DeviceMemory> memory = RegisterMemory(region);
  if (!memory.ok()) return memory.status();
  if (memory->gpu() != nullptr) {
    // Only asks: what arrival_flusher_ holds belongs to the driver.
    const absl::Status status = cuda::Flusher().Add(memory->driver(), memory->gpu()->ordinal);
    if (!status.ok()) return Annotate(status, "verbs");
  }
  const Penalties penalties = PenaltiesOf(*memory, region.span);
  auto registration =
      std::make_unique<VerbsRegistration>(this, region, *std::move(memory), penalties);
  if (!registration->why_missing().ok()) {
    Log(LogLevel::kWarning, "verbs: {} goes without some devices: {}", ToStd(registration->What()),
        ToStd(registration->why_missing().message()));
  }
  registrations_.Add(registration.get());
  return registration;
}

void VerbsBackend::TakeAllAdded() {
  bool missing = false;
  for (const VerbsRegistration* registration : registrations_.TakeAdded()) {
    missing = missing || !registration->why_missing().ok();
  }
  if (!missing) return;
  // Rails over those devices cannot be used while the region exists.
  for (const auto& device : devices_) {
    const absl::Status why = CheckRegions(*device);
    if (why.ok()) continue;
    for (VerbsEndpoint* endpoint : Endpoints()) endpoint->OnUncovered(*device, why);
  }
}

absl::Status VerbsBackend::CheckRegions(const Device& device) const {
  for (const VerbsRegistration* registration : registrations_.open()) {
    if (registration->has(device.ordinal())) continue;
    return absl::FailedPreconditionError(absl::StrCat(registration->What(),
                                                      " is not registered with ", device.name(),
                                                      ": ", registration->why_missing().message()));
  }
  return absl::OkStatus();
}

std::unique_ptr<net::ControlEndpoint> VerbsBackend::Accept(net::Incoming incoming) {
  return std::make_unique<VerbsAcceptedEndpoint>(this, std::move(incoming.control),
                                                 std::move(incoming.from));
}

std::vector<VerbsEndpoint*> VerbsBackend::Endpoints() const {
  std::vector<VerbsEndpoint*> out;
  for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
    out.push_back(static_cast<VerbsEndpoint*>(endpoint));
  }
  return out;
}

std::optional<uint16_t> VerbsBackend::TakeSlot(WorkOwner* owner, uint64_t& first) {
  if (free_slots_.empty()) {
    if (slots_.size() > UINT16_MAX) return std::nullopt;
    free_slots_.push_back(static_cast<uint16_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint16_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].owner = owner;
  first = slots_[slot].next;
  return slot;
}

void VerbsBackend::FreeSlot(uint16_t slot, uint64_t next) {
  slots_[slot] = {.owner = nullptr, .next = next};
  free_slots_.push_back(slot);
}

uint64_t VerbsBackend::ReceiverId(uint32_t number, const Device& device) {
  return uint64_t{device.ordinal()} << 32 | number;
}

void VerbsBackend::AddReceiver(uint32_t number, const Device& device,
                               VerbsAcceptedEndpoint* endpoint, uint32_t rail) {
  receivers_[ReceiverId(number, device)] = {.endpoint = endpoint, .rail = rail};
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
