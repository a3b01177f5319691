#include "src/backends/cuda_ipc/backend.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/cuda_ipc/accepted.h"
#include "src/backends/cuda_ipc/dialled.h"
#include "src/backends/cuda_ipc/factory.h"
#include "src/core/base/strings.h"
#include "src/cuda/present.h"
#include "src/transport/host/peer_process.h"

namespace kvxfer {
namespace cuda_ipc {
namespace {

CudaIpcEndpoint* EndpointOf(net::ControlEndpoint* endpoint) {
  return static_cast<CudaIpcEndpoint*>(endpoint);
}

uint64_t IpcNamespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/ipc", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

CudaIpcBackend::CudaIpcBackend(const BackendContext& context)
    : options_(context.options),
      host_(context.host),
      ipc_namespace_(IpcNamespace()),
      info_{.name = "cuda_ipc",
            .capabilities = {.arrival = Arrival::kCopied,
                             .memory_kinds = BitOf(MemoryKind::kCuda),
                             .device_ids = true,
                             .max_op_bytes = kMaxOpBytes,
                             .whole_op_bytes = kMaxOpBytes,
                             .max_op_pieces = kMaxOpPieces,
                             .max_message_bytes = net::kMaxMessageBytes,
                             .carrier = options_.control == ControlCarrier::kTcp
                                            ? ControlCarrier::kTcp
                                            : ControlCarrier::kShm}},
      hub_({.backend = "cuda_ipc",
            .service = net::Service{4},
            .incarnation = context.incarnation,
            .connect_timeout = options_.connect_timeout},
           this),
      copies_(options_.copy_sms),
      ring_choice_("cuda_ipc", options_.control) {}

absl::StatusOr<std::unique_ptr<Backend>> CudaIpcBackend::Create(const BackendContext& context) {
  if (absl::Status present = cuda::DriverPresent(); !present.ok()) return present;
  std::unique_ptr<CudaIpcBackend> backend(new CudaIpcBackend(context));
  if (absl::Status open = backend->Open(context.incarnation); !open.ok()) return open;
  return backend;
}

absl::Status CudaIpcBackend::Open(const Incarnation& incarnation) {
  if (absl::Status open = hub_.Open(); !open.ok()) return open;
  if (absl::Status made = MakeBell(); !made.ok()) return made;
  // Without a pidfd, the death of a peer could not be distinguished from its silence.
  auto self = PeerProcess::Open(host_, static_cast<uint32_t>(::getpid()), 0);
  if (!self.ok()) return Annotate(self.status(), "not usable here");
  // Peers of this backend are on this host and in this network namespace, so loopback suffices.
  AgentOptions listen = options_;
  listen.advertise.clear();
  absl::Status listens = hub_.Listen(listen, "127.0.0.1:0", "the loopback address");
  if (!listens.ok()) return listens;
  listens = lifeline_listener_.Open(&hub_.reactor(), incarnation);
  if (!listens.ok()) return listens;
  info_.address = Encode(MetadataAddress{.ipc_namespace = ipc_namespace_,
                                         .listener = lifeline_listener_.name(),
                                         .control = hub_.Address()});
  info_.wait_fd = hub_.fd();
  FindDevices();
  return absl::OkStatus();
}

// Edge-triggered and never read: only the fact that it was rung matters. Nobody is called, because
// Poll looks at every ring anyway.
absl::Status CudaIpcBackend::MakeBell() {
  bell_ = net::Fd::Open([] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
  if (!bell_.valid()) return ErrnoStatus(errno, "cuda_ipc: eventfd");
  return Annotate(hub_.reactor().Add(bell_.get(), nullptr, EPOLLIN | EPOLLET), "cuda_ipc");
}

CudaIpcBackend::~CudaIpcBackend() {
  for (net::ControlEndpoint* endpoint : hub_.endpoints()) EndpointOf(endpoint)->StopData();
  // Before the endpoints are detached: copies may still write to memory of peers.
  copies_.Wait(nullptr);
  hub_.Close();
  for (const auto& [number, registration] : std::exchange(regions_, {})) registration->Detach();
}

absl::Status CudaIpcBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  if (auto at = DecodeMetadataAddress(address); !at.ok()) return at.status();
  return CheckReachable(host_, host);
}

absl::StatusOr<std::unique_ptr<Endpoint>> CudaIpcBackend::Connect(std::string_view address,
                                                                  const HostIdentity& host) {
  absl::StatusOr<MetadataAddress> at = DecodeMetadataAddress(address);
  if (!at.ok()) return at.status();
  if (absl::Status reach = CheckReachable(host_, host); !reach.ok()) return reach;
  absl::StatusOr<net::PeerAddress> control = net::DecodeReachable(at->control, host_, host);
  if (!control.ok()) return control.status();
  auto endpoint =
      std::make_unique<CudaIpcDialledEndpoint>(this, *std::move(control), *std::move(at), host);
  hub_.Dial(endpoint.get());
  return endpoint;
}

std::unique_ptr<net::ControlEndpoint> CudaIpcBackend::Accept(net::Incoming incoming) {
  return std::make_unique<CudaIpcAcceptedEndpoint>(this, std::move(incoming.control),
                                                   std::move(incoming.from));
}

void CudaIpcBackend::OnDial(std::unique_ptr<Lifeline> lifeline, const DialPacket& dial) {
  for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
    if (EndpointOf(endpoint)->Join(lifeline, dial)) return;
  }
}

absl::StatusOr<std::unique_ptr<Registration>> CudaIpcBackend::Register(const LocalRegion& region) {
  const MemorySpan& span = region.span;
  if (span.kind != MemoryKind::kCuda || span.data == nullptr || span.bytes == 0 ||
      region.rkey == 0) {
    return absl::InvalidArgumentError(
        "cuda_ipc: only GPU memory, with an address, bytes and an rkey, can be registered");
  }
  absl::StatusOr<cuda::DeviceSpan> found = ExamineShareable(span);
  if (!found.ok()) return Annotate(found.status(), "cuda_ipc");
  const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  absl::Status ready = copies_.MakeReady(*driver, found->device);
  if (!ready.ok()) return Annotate(ready, "cuda_ipc");
  return Add(region, *driver, *std::move(found));
}

std::unique_ptr<CudaIpcRegistration> CudaIpcBackend::Add(const LocalRegion& region,
                                                         const cuda::Driver* driver,
                                                         cuda::DeviceSpan span) {
  const std::lock_guard lock(mu_);
  auto registration =
      std::make_unique<CudaIpcRegistration>(static_cast<CudaIpcRegistration::Owner*>(this),
                                            ++last_region_, region, driver, std::move(span));
  regions_.emplace(registration->number(), registration.get());
  ++devices_[registration->device()];
  cuda_used_.store(true, std::memory_order_relaxed);
  return registration;
}

void CudaIpcBackend::OnClosed(const CudaIpcRegistration& registration) {
  {
    const std::lock_guard lock(mu_);
    regions_.erase(registration.number());
    const auto device = devices_.find(registration.device());
    if (device != devices_.end() && --device->second == 0) devices_.erase(device);
  }
  for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
    EndpointOf(endpoint)->Forget(registration.number());
  }
}

const CudaIpcRegistration* CudaIpcBackend::FindRegion(uint64_t number) const {
  const std::lock_guard lock(mu_);
  const auto it = regions_.find(number);
  return it == regions_.end() ? nullptr : it->second;
}

std::vector<int> CudaIpcBackend::devices() const {
  const std::lock_guard lock(mu_);
  std::vector<int> out;
  for (const auto& [device, registrations] : devices_) out.push_back(device);
  return out;
}

// kLikely makes no system call: the end of a batch and messages in rings, which are what comes
// most, are found in memory.
size_t CudaIpcBackend::Poll(std::span<Event> out, Input input) {
  if (cuda_used_.load(std::memory_order_relaxed) && info_.devices.empty()) FindDevices();
  messages_.clear();
  if (std::exchange(armed_, false)) {
    for (net::ControlEndpoint* endpoint : hub_.endpoints()) EndpointOf(endpoint)->DisarmRings();
  }
  if (hub_.Begin(out, input == Input::kAll)) {
    lifeline_listener_.Work();
    WorkBeside();
    copies_.Poll();
    hub_.Work();
  }
  return hub_.End();
}

// Another endpoint goes first each time. The list changes only by calls of the agent, not during
// this loop.
void CudaIpcBackend::WorkBeside() {
  const std::vector<net::ControlEndpoint*>& all = hub_.endpoints();
  const size_t first = ring_turn_++;
  for (size_t i = 0; i < all.size(); ++i) EndpointOf(all[(first + i) % all.size()])->WorkAside();
}

bool CudaIpcBackend::Arm() {
  const auto has_work = [](net::ControlEndpoint* endpoint) {
    return EndpointOf(endpoint)->HasWorkAside();
  };
  if (hub_.HasWork() || lifeline_listener_.HasWork() ||
      std::ranges::any_of(hub_.endpoints(), has_work)) {
    return false;
  }
  // The end of a copy is near: it shows in memory only.
  if (const std::optional<Time> next = copies_.NextPoll(); next && *next <= Now()) return false;
  hub_.SetTimer();
  armed_ = true;
  bool silent = true;
  for (net::ControlEndpoint* endpoint : hub_.endpoints()) {
    silent &= EndpointOf(endpoint)->ArmRings();
  }
  return silent;
}

std::optional<Time> CudaIpcBackend::deadline() const {
  return Earlier(lifeline_listener_.deadline(), copies_.NextPoll());
}

std::string CudaIpcBackend::PathOf(const PeerRegion& region, int device) const {
  const cuda::Driver* const driver = cuda::Driver::IfInUse();
  const cuda::Device* const theirs =
      driver == nullptr ? nullptr : driver->FindUuid(region.owner().device_uuid);
  std::string out = absl::StrCat("GPU ", device, " -> ");
  if (theirs == nullptr) {
    absl::StrAppend(&out, region.owner().ToString());
  } else {
    absl::StrAppend(&out, "GPU ", theirs->ordinal, " over ",
                    LinkBetween(*driver, device, theirs->ordinal));
  }
  const std::string how = copies_.Describe(device);
  return how.empty() ? out : absl::StrCat(out, ", ", how);
}

// None while the process does not use CUDA.
void CudaIpcBackend::FindDevices() {
  const cuda::Driver* const driver = cuda::Driver::IfInUse();
  if (driver == nullptr) return;
  for (const cuda::Device& device : driver->devices()) {
    info_.devices.push_back(
        absl::StrCat("GPU ", device.ordinal, ": ", device.name, ", ", device.pci));
  }
}

}  // namespace cuda_ipc

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaIpcBackend(const BackendContext& context) {
  return cuda_ipc::CudaIpcBackend::Create(context);
}

}  // namespace kvxfer
