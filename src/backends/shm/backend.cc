#include "src/backends/shm/backend.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/backends/shm/factory.h"
#include "src/backends/shm/options.h"
#include "src/core/base/cpus.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {

absl::StatusOr<std::unique_ptr<Backend>> MakeShmBackend(const BackendContext& context) {
  return shm::ShmBackend::Create(context);
}

namespace shm {
namespace {

// The most connections whose kDial has not arrived. Beyond it the oldest is closed.
constexpr size_t kMaxEmbryos = 64;
// About 50 us: how long copies keep Poll from other work, except for a slice of attached memory.
constexpr size_t kCopiedPerPoll = 2 * kSliceBytes;
// The peer sleeps while its memory is copied, so that two CPUs are enough for a second copying
// thread; and where others keep both busy, the first thread does not wait for it.
constexpr int kSharedCopyCpus = 2;

uint32_t CopyThreads(uint32_t asked) {
  return asked != 0 ? asked : UsableCpus() >= kSharedCopyCpus ? 2 : 1;
}

}  // namespace

// Defined here, where the endpoint classes are complete types.
Hub::Hub(uint32_t copy_threads, ControlCarrier control)
    : threads(copy_threads), ring_choice("shm", control) {}
Hub::~Hub() = default;

void Hub::SendNewFiles() {
  if (!files.has_new()) return;
  for (const SharedFiles::File* file : files.TakeNew()) {
    for (ShmAcceptedEndpoint* endpoint : authorised) endpoint->SendFile(*file);
  }
}

absl::StatusOr<std::unique_ptr<Backend>> ShmBackend::Create(const BackendContext& context) {
  const auto options = ReadOptions<ShmOptions>("shm", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<ShmBackend> backend(
      new ShmBackend(CopyThreads(options->copy_threads), context.options.control));
  BackendInfo& info = backend->info_;
  info.name = "shm";
  info.capabilities = {.arrival = Arrival::kCopied,
                       .memory_kinds = BitOf(MemoryKind::kHost),
                       .rail_keeps_order = true,
                       .needs_remote_cpu = false,
                       .max_op_bytes = kMaxOpBytes,
                       .max_op_pieces = kMaxOpPieces,
                       .max_message_bytes = kMaxMessageBytes,
                       .carrier = ControlCarrier::kShm};
  backend->hub_.host = context.host;
  backend->address_.pid = static_cast<uint32_t>(getpid());
  backend->address_.start_time = context.host.start_time;
  // Without a pidfd, the death of a peer could not be distinguished from its silence.
  auto self = PeerProcess::Open(context.host, backend->address_.pid, context.host.start_time);
  if (!self.ok()) return Annotate(self.status(), "not usable here");
  auto reactor = net::Reactor::Create();
  if (!reactor.ok()) return Annotate(reactor.status(), "shm");
  backend->hub_.reactor = *std::move(reactor);
  if (absl::Status made = backend->MakeProbeFile(); !made.ok()) return made;
  if (absl::Status made = backend->MakeBell(); !made.ok()) return made;
  const absl::Status listens =
      backend->listener_.Open(backend->hub_.reactor.get(), context.incarnation);
  if (!listens.ok()) return listens;
  backend->address_.socket = backend->listener_.name();
  info.address = Encode(backend->address_);
  info.wait_fd = backend->hub_.reactor->fd();
  return backend;
}

ShmBackend::~ShmBackend() {
  // Connections that were not reported use the hub in their destructors.
  hub_.events.Clear();
  hub_.embryos.clear();
}

absl::Status ShmBackend::MakeProbeFile() {
  hub_.probe_value = RandomNonZero64();
  hub_.probe_file = UniqueFd(memfd_create("kvxfer-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!hub_.probe_file.valid()) return ErrnoStatus(errno, "shm: memfd_create");
  if (pwrite(hub_.probe_file.get(), &hub_.probe_value, sizeof(uint64_t), 0) != sizeof(uint64_t) ||
      // F_SEAL_WRITE: peers can map it, but not change what this side claims it holds.
      fcntl(hub_.probe_file.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "shm: making the probe memfd");
  }
  return absl::OkStatus();
}

// Edge-triggered and never read: only the fact that it was rung matters. Nobody is called, because
// Poll looks at every ring and for new files anyway.
absl::Status ShmBackend::MakeBell() {
  hub_.bell = UniqueFd::Open([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
  if (!hub_.bell.valid()) return ErrnoStatus(errno, "shm: eventfd");
  return Annotate(hub_.reactor->Add(hub_.bell.get(), nullptr, EPOLLIN | EPOLLET), "shm");
}

absl::Status ShmBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  if (auto decoded = DecodeAddress(address); !decoded.ok()) return decoded.status();
  return CheckReachable(hub_.host, host);
}

absl::StatusOr<std::unique_ptr<Endpoint>> ShmBackend::Connect(std::string_view address,
                                                              const HostIdentity&) {
  auto decoded = DecodeAddress(address);
  if (!decoded.ok()) return decoded.status();
  return ShmDialledEndpoint::Dial(&hub_, *decoded);
}

absl::StatusOr<std::unique_ptr<Registration>> ShmBackend::Register(const LocalRegion& region) {
  const MemorySpan& span = region.span;
  if (span.kind != MemoryKind::kHost) {
    return absl::InvalidArgumentError(
        "shm: only host memory can be registered; GPU memory goes by way of it (staging), or over "
        "cuda_ipc");
  }
  if (span.data == nullptr || span.bytes == 0) {
    return absl::InvalidArgumentError("shm: a region needs an address and bytes");
  }
  const absl::StatusOr<RegionKey> key = Share(span);
  if (!key.ok()) return Annotate(key.status(), "shm");
  return std::make_unique<ShmRegistration>(static_cast<RegistrationOwner*>(this), region, *key);
}

// The key by which peers reach `span`. If it lies in a memfd that they do not know, they are sent
// the memfd before any message that this side sends after this call, and soon in any case.
absl::StatusOr<RegionKey> ShmBackend::Share(const MemorySpan& span) {
  if (span.shared_fd < 0) return RegionKey{};
  if (const absl::Status mappable = SharedFiles::Mappable(span); !mappable.ok()) {
    Log(LogLevel::kWarning, "shm: memory at {} is not mapped by peers but attached, slower: {}",
        span.data, std::string_view(mappable.message().data(), mappable.message().size()));
    return RegionKey{};
  }
  const absl::StatusOr<SharedFiles::Added> file = hub_.files.Add(span.shared_fd);
  if (!file.ok()) return file.status();
  // The driver sends it, because the connections are the driver's; it may be asleep.
  if (file->fresh) eventfd_write(hub_.bell.get(), 1);
  return RegionKey{.mapped = true, .file = file->id, .offset = span.shared_offset};
}

void ShmBackend::Unregister(const RegionKey& key) {
  if (!key.mapped || !hub_.files.Remove(key.file)) return;
  for (ShmAcceptedEndpoint* endpoint : hub_.authorised) endpoint->SendForget(key.file);
}

// Most input comes in the rings, which are memory: there is no system call that kLikely would make.
size_t ShmBackend::Poll(std::span<Event> out, Input input) {
  // Sockets, if they are looked at, come before the copies: a peer that closes stops its copies
  // first.
  if (hub_.events.size() < out.size()) {
    if (input == Input::kAll) {
      hub_.reactor->Collect();
      EndLingering();
      TrimEmbryos();
    }
    EndHeld();
    // After Collect: a file whose bell it took is there. With any input, because Arm asks for it.
    hub_.SendNewFiles();
    listener_.Work();
    PollRings();
    CopySlices();
    SetTimer();
  }
  return hub_.events.Take(out);
}

void ShmBackend::EndLingering() {
  while (!hub_.lingering.empty() && hub_.lingering.front()->linger_until() <= Now()) {
    hub_.lingering.front()->OnLingerDeadline();  // takes it out of the list
  }
}

// What held them is no event of this backend, and the agent polls after it.
void ShmBackend::EndHeld() {
  const auto released = [](const ShmDialledEndpoint* endpoint) { return !endpoint->held(); };
  for (auto it = hub_.held.begin(); it != hub_.held.end(); it = hub_.held.begin()) {
    it = std::find_if(it, hub_.held.end(), released);
    if (it == hub_.held.end()) return;
    (*it)->OnReleased();  // takes it out of the list
  }
}

void ShmBackend::SetTimer() {
  std::optional<Time> next = listener_.deadline();
  if (!hub_.lingering.empty()) next = Earlier(next, hub_.lingering.front()->linger_until());
  hub_.reactor->SetTimer(next);
}

// After Collect, which may still have had events for those that go. The vector is in the order of
// accepting.
void ShmBackend::TrimEmbryos() {
  std::vector<std::unique_ptr<ShmAcceptedEndpoint>>& all = hub_.embryos;
  std::erase_if(all, [](const auto& embryo) { return embryo->failed_embryo(); });
  if (all.size() <= kMaxEmbryos) return;
  all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kMaxEmbryos));
}

// Another ring goes first each time. Iterates by index: an endpoint that goes down leaves the list,
// and a ring that is skipped because of that has its turn next time.
void ShmBackend::PollRings() {
  if (std::exchange(armed_, false)) {
    for (ShmEndpoint* endpoint : hub_.ringed) endpoint->Disarm();
  }
  const size_t first = ring_turn_++;
  for (size_t i = 0; i < hub_.ringed.size(); ++i) {
    hub_.ringed[(first + i) % hub_.ringed.size()]->PollRing();
  }
}

// Round robin over the connections, one slice each.
void ShmBackend::CopySlices() {
  for (size_t copied = 0; copied < kCopiedPerPoll && !hub_.busy.empty();) {
    ShmDialledEndpoint* const endpoint = hub_.busy.front();
    hub_.busy.pop_front();
    copied += endpoint->Step();
    if (endpoint->busy()) hub_.busy.push_back(endpoint);
  }
}

bool ShmBackend::Arm() {
  if (!hub_.events.empty() || !hub_.busy.empty() || hub_.files.has_new() || listener_.HasWork()) {
    return false;
  }
  if (std::ranges::any_of(hub_.held, [](const auto* endpoint) { return !endpoint->held(); })) {
    return false;
  }
  SetTimer();  // a Shutdown since the last Poll has set a new deadline
  armed_ = true;
  bool silent = true;
  for (ShmEndpoint* endpoint : hub_.ringed) silent &= endpoint->Arm();
  return silent;
}

// Nothing has been sent or lent yet.
void ShmBackend::OnAccepted(UniqueFd socket, const net::Credentials& peer) {
  auto embryo = ShmAcceptedEndpoint::Begin(&hub_, std::move(socket), peer.pid);
  if (embryo.ok()) hub_.embryos.push_back(*std::move(embryo));
}

bool ShmBackend::EndOldestSilent() {
  if (hub_.embryos.empty()) return false;
  hub_.embryos.erase(hub_.embryos.begin());
  return true;
}

void ShmBackend::OnRefused(UniqueFd socket, const net::Credentials& peer) {
  Channel channel(std::move(socket), hub_.receive_buffer.get());
  channel.SendFrame(FrameType::kBye,
                    absl::StrCat("this process runs as uid ", geteuid(), ", the dialler as uid ",
                                 peer.uid, "; shm joins processes of one user only"));
  channel.Close();
}

}  // namespace shm
}  // namespace kvxfer
