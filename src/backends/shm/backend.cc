#include "src/backends/shm/backend.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
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
// The most other users whose attempts are logged as a warning, once each.
constexpr size_t kMaxRefusedUids = 16;
constexpr int kAcceptsPerPoll = 16;
// About 50 us: how long copies keep Poll from other work, except for a slice of attached memory.
constexpr size_t kCopiedPerPoll = 2 * kSliceBytes;
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
// With fewer CPUs a second copying thread would take a CPU from the application.
constexpr int kSharedCopyCpus = 4;

uint32_t CopyThreads(uint32_t asked) {
  return asked != 0 ? asked : UsableCpus() >= kSharedCopyCpus ? 2 : 1;
}

}  // namespace

// Defined here, where the endpoint classes are complete types.
Hub::Hub(uint32_t copy_threads) : threads(copy_threads) {}
Hub::~Hub() = default;

void Hub::SendNewFiles() {
  if (!files.has_new()) return;
  for (const SharedFiles::File* file : files.TakeNew()) {
    for (AcceptedEndpoint* endpoint : authorised) endpoint->SendFile(*file);
  }
}

absl::StatusOr<std::unique_ptr<Backend>> ShmBackend::Create(const BackendContext& context) {
  const auto options = ReadOptions<ShmOptions>("shm", context.options);
  if (!options.ok()) return options.status();
  std::unique_ptr<ShmBackend> backend(new ShmBackend(CopyThreads(options->copy_threads)));
  BackendInfo& info = backend->info_;
  info.name = "shm";
  info.capabilities = {.arrival = Arrival::kCopied,
                       .memory_kinds = BitOf(MemoryKind::kHost),
                       .rail_keeps_order = true,
                       .needs_remote_cpu = false,
                       .max_op_bytes = kMaxOpBytes,
                       .max_op_runs = kMaxOpRuns,
                       .max_message_bytes = kMaxMessageBytes};
  backend->hub_.host = context.host;
  backend->address_.pid = static_cast<uint32_t>(getpid());
  backend->address_.start_time = context.host.start_time;
  // Without a pidfd, the death of a peer could not be distinguished from its silence.
  auto self = PeerProcess::Open(backend->address_.pid, context.host.start_time);
  if (!self.ok()) return Annotate(self.status(), "not usable here");
  auto reactor = net::Reactor::Create();
  if (!reactor.ok()) return Annotate(reactor.status(), "shm");
  backend->hub_.reactor = *std::move(reactor);
  if (absl::Status made = backend->MakeProbeFile(); !made.ok()) return made;
  if (absl::Status made = backend->MakeBell(); !made.ok()) return made;
  if (absl::Status up = backend->Listen(context.incarnation); !up.ok()) return up;
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

absl::Status ShmBackend::Listen(const Incarnation& incarnation) {
  // The random part keeps other processes from occupying the name beforehand.
  address_.socket = absl::StrCat("kvxfer-shm-", incarnation.ToString(), "-",
                                 absl::Hex(RandomNonZero64(), absl::kZeroPad16));
  listener_ = UniqueFd::Open(
      [] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!listener_.valid()) return ErrnoStatus(errno, "shm: socket");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, address_.socket.data(), address_.socket.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address_.socket.size());
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("shm: listening on @", address_.socket));
  }
  return Annotate(hub_.reactor->Add(listener_.get(), this, EPOLLIN), "shm");
}

absl::Status ShmBackend::Reachable(std::string_view address, const HostIdentity& host) const {
  if (auto decoded = DecodeAddress(address); !decoded.ok()) return decoded.status();
  return CheckReachable(hub_.host, host);
}

absl::StatusOr<std::unique_ptr<Endpoint>> ShmBackend::Connect(std::string_view address,
                                                              const HostIdentity&) {
  auto decoded = DecodeAddress(address);
  if (!decoded.ok()) return decoded.status();
  return DialledEndpoint::Dial(&hub_, *decoded);
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
  for (AcceptedEndpoint* endpoint : hub_.authorised) endpoint->SendForget(key.file);
}

// Most input comes in the rings, which are memory: there is no system call that kLikely would make.
size_t ShmBackend::Poll(std::span<Event> out, Input input) {
  // Sockets, if they are looked at, come before the copies: a peer that closes stops its copies
  // first.
  if (hub_.events.size() < out.size()) {
    if (input == Input::kAll) {
      hub_.reactor->Collect();
      ResumeAccepting();
      TrimEmbryos();
    }
    // After Collect: a file whose bell it took is there.
    hub_.SendNewFiles();
    PollRings();
    CopySlices();
  }
  return hub_.events.Take(out);
}

// After Collect, which may still have had events for those that go. The vector is in the order of
// accepting.
void ShmBackend::TrimEmbryos() {
  std::vector<std::unique_ptr<AcceptedEndpoint>>& all = hub_.embryos;
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
    DialledEndpoint* const endpoint = hub_.busy.front();
    hub_.busy.pop_front();
    copied += endpoint->Step();
    if (endpoint->busy()) hub_.busy.push_back(endpoint);
  }
}

bool ShmBackend::Arm() {
  if (!hub_.events.empty() || !hub_.busy.empty() || hub_.files.has_new()) return false;
  armed_ = true;
  bool silent = true;
  for (ShmEndpoint* endpoint : hub_.ringed) silent &= endpoint->Arm();
  return silent;
}

void ShmBackend::OnReady(uint32_t) { AcceptAll(); }

void ShmBackend::AcceptAll() {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    UniqueFd socket = UniqueFd::Open([this] {
      return accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (socket.valid()) {
      AcceptOne(std::move(socket));
    } else if (OutOfResources(errno)) {
      PauseAccepting();
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

void ShmBackend::AcceptOne(UniqueFd socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
  if (peer.uid != geteuid()) return Refuse(std::move(socket), peer);
  // Nothing has been sent or lent yet. A connection from another user ends here.
  auto embryo = AcceptedEndpoint::Begin(&hub_, std::move(socket), static_cast<uint32_t>(peer.pid));
  if (!embryo.ok()) return;
  hub_.embryos.push_back(*std::move(embryo));
}

// Logged once per user, because a user could fill the log by repeated attempts.
void ShmBackend::Refuse(UniqueFd socket, const ucred& peer) {
  const bool known = std::ranges::find(refused_uids_, peer.uid) != refused_uids_.end();
  const bool warn = !known && refused_uids_.size() < kMaxRefusedUids;
  if (warn) refused_uids_.push_back(peer.uid);
  Log(warn ? LogLevel::kWarning : LogLevel::kDebug,
      "shm: refused process {} of uid {}: only uid {} may connect", peer.pid, peer.uid, geteuid());
  Channel channel(std::move(socket));
  channel.SendFrame(FrameType::kBye,
                    absl::StrCat("this process runs as uid ", geteuid(), ", the dialler as uid ",
                                 peer.uid, "; shm joins processes of one user only"));
  channel.Close();
}

// Without free descriptors the listener stays readable and would keep the agent awake for nothing.
void ShmBackend::PauseAccepting() {
  Log(LogLevel::kWarning, "shm: {}; new connections wait until descriptors are free",
      ErrnoText("accept", errno));
  hub_.reactor->Change(listener_.get(), this, 0);
  paused_until_ = Now() + kAcceptPause;
  hub_.reactor->SetTimer(paused_until_);
}

void ShmBackend::ResumeAccepting() {
  if (!paused_until_ || Now() < *paused_until_) return;
  paused_until_.reset();
  hub_.reactor->Change(listener_.get(), this, EPOLLIN);
  AcceptAll();
}

}  // namespace shm
}  // namespace kvxfer
