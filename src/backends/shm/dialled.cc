#include "src/backends/shm/dialled.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <utility>

#include "src/backends/shm/regions.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/transport/host/stream_copy.h"

namespace kvxfer::shm {
namespace {

absl::Status ConnectTo(int socket, const Address& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // Abstract name: the first byte of the path stays zero.
  std::memcpy(name.sun_path + 1, address.socket.data(), address.socket.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.socket.size());
  if (connect(socket, reinterpret_cast<const sockaddr*>(&name), length) == 0) {
    return absl::OkStatus();
  }
  const std::string whom = absl::StrCat("shm: connecting to process ", address.pid);
  if (errno == ECONNREFUSED) {
    return absl::UnavailableError(
        absl::StrCat(ToAbsl(ErrnoText(whom, errno)), "; that agent is gone"));
  }
  if (errno == EAGAIN) {
    return absl::UnavailableError(
        absl::StrCat(whom, ": its queue of new connections is full; try again"));
  }
  return ErrnoStatus(errno, whom);
}

// The kernel reports the credentials of the process that called listen().
absl::Status CheckCredentials(int socket, const Address& address) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "shm: SO_PEERCRED");
  }
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("shm: process ", address.pid, " runs as uid ",
                                                    peer.uid, " and this one as uid ", geteuid(),
                                                    "; shm joins processes of one user only"));
  }
  if (static_cast<uint32_t>(peer.pid) != address.pid) {
    return absl::UnavailableError(absl::StrCat("shm: the peer calls itself process ", address.pid,
                                               " but is ", peer.pid,
                                               " here: the two are in different pid namespaces"));
  }
  return absl::OkStatus();
}

absl::Status ProbeMapped(const Channel::Frame& frame, uint64_t value) {
  if (!frame.file.valid()) {
    return absl::ResourceExhaustedError(
        frame.file_lost
            ? "no descriptor left for the peer's memory; raise the limit (ulimit -n, LimitNOFILE=)"
            : "the peer could not pass a descriptor; raise the limit there (ulimit -n)");
  }
  // The size is the peer's claim: touching a smaller file would raise SIGBUS here.
  if (absl::Status good = CheckFile(frame.file.get(), 0, sizeof(value)); !good.ok()) {
    return Annotate(good, "the peer's probe memory");
  }
  void* data = mmap(nullptr, sizeof(value), PROT_READ, MAP_SHARED, frame.file.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mapping the peer's probe memory");
  const Mapping mapping(data, sizeof(value));
  uint64_t seen = 0;
  std::memcpy(&seen, data, sizeof(seen));
  if (seen == value) return absl::OkStatus();
  return absl::InternalError("the peer's probe memory holds another value than it says");
}

// The error for a region whose descriptor did not arrive. `error` is the peer's errno; 0: it was
// lost here.
absl::Status NoFile(int error, uint32_t pid) {
  const std::string what = absl::StrCat("shm: descriptor of the memory of process ", pid);
  if (error == 0) return ErrnoStatus(EMFILE, what);
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": it cannot pass it: ", strerrordesc_np(error),
                   "; raise its limit of open files (ulimit -n, LimitNOFILE= of systemd)"));
}

}  // namespace

DialledEndpoint::DialledEndpoint(Hub* hub, UniqueFd socket)
    : ShmEndpoint(hub, std::move(socket)), copier_(this, &hub->events, &hub->threads) {}

DialledEndpoint::~DialledEndpoint() {
  if (busy_) std::erase(hub_->busy, this);
}

std::unique_ptr<DialledEndpoint> DialledEndpoint::Dial(Hub* hub, const Address& address) {
  UniqueFd socket = UniqueFd::Open(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  const int error = errno;
  std::unique_ptr<DialledEndpoint> endpoint(new DialledEndpoint(hub, std::move(socket)));
  const absl::Status started =
      endpoint->channel_.fd() < 0 ? ErrnoStatus(error, "shm: socket") : endpoint->Start(address);
  if (!started.ok()) {
    endpoint->GoDown(started);
    return endpoint;
  }
  hub->events.Say(EventKind::kConnected, endpoint.get());
  return endpoint;
}

absl::Status DialledEndpoint::Start(const Address& address) {
  if (absl::Status up = ConnectTo(channel_.fd(), address); !up.ok()) return up;
  if (absl::Status same = CheckCredentials(channel_.fd(), address); !same.ok()) return same;
  auto peer = PeerProcess::Open(address.pid, address.start_time);
  if (!peer.ok()) return Annotate(peer.status(), "shm");
  if (absl::Status watched = WatchSocket(); !watched.ok()) return watched;
  if (absl::Status watched = WatchPeer(*std::move(peer)); !watched.ok()) return watched;
  copier_.SetPeer(&peer_, channel_.fd());
  const DialBody dial{.version = kWireVersion,
                      .pid = static_cast<uint32_t>(getpid()),
                      .start_time = hub_->host.start_time};
  SendFrame(FrameType::kDial, wire::Encode(dial));
  channel_.OfferRings(hub_->bell.get());
  WatchRings();
  return absl::OkStatus();
}

EndpointInfo DialledEndpoint::Describe() const { return OneRail(Path()); }

std::string DialledEndpoint::Path() const {
  const std::string whom = absl::StrCat("process ", peer_.pid(), ": ");
  if (!offered_) return absl::StrCat(whom, "not authorised yet");
  return absl::StrCat(
      whom,
      mapped_.ok() ? absl::StrCat("mapped memfd (", StreamCopyName(), " stores)")
                   : absl::StrCat("no mapping, ", mapped_.message()),
      " and ", attach_.ok() ? "cross-memory attach" : absl::StrCat("no ", attach_.message()));
}

absl::Status DialledEndpoint::OnFrame(Channel::Frame& frame) {
  if (frame.type == FrameType::kOffer && !offered_) {
    if (const auto offer = wire::TryDecode<OfferBody>(frame.body)) return OnOffer(*offer, frame);
  }
  if (frame.type == FrameType::kFile && offered_) {
    if (const auto body = wire::TryDecode<FileBody>(frame.body)) {
      File& file = files_[body->id];
      file.fd = std::move(frame.file);
      if (!file.fd.valid()) {
        file.lost = NoFile(body->error, peer_.pid());
      }
      return absl::OkStatus();
    }
  }
  if (frame.type == FrameType::kBell) return channel_.TakeBell(frame);
  if (frame.type == FrameType::kForget) {
    if (const auto body = wire::TryDecode<ForgetBody>(frame.body)) {
      files_.erase(body->id);
      return absl::OkStatus();
    }
  }
  return absl::InternalError(
      absl::StrCat("shm: process ", peer_.pid(), " sent a frame out of place"));
}

absl::Status DialledEndpoint::OnOffer(const OfferBody& offer, const Channel::Frame& frame) {
  offered_ = true;
  // Each way is tried instead of inferred, so that a refusal by the kernel is known before the
  // first op.
  mapped_ = ProbeMapped(frame, offer.mapped_value);
  attach_ = ProbeAttach(peer_, offer);
  if (attach_.ok()) copier_.SetProbe(offer.probe_address, offer.probe_value);
  if (!attach_.ok()) {
    Log(LogLevel::kInfo, "shm: process {} is not attached to: {}", peer_.pid(),
        std::string_view(attach_.message().data(), attach_.message().size()));
  }
  if (mapped_.ok() || attach_.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("shm: process ", peer_.pid(),
                                             " cannot be reached: ", mapped_.message(), "; ",
                                             attach_.message(), "; tcp will be taken"));
}

bool DialledEndpoint::Post(const Op& op) {
  if (down_) return false;
  const bool accepted = copier_.Post(op);
  if (!copier_.idle() && !busy_) {
    busy_ = true;
    hub_->busy.push_back(this);
  }
  return accepted;
}

size_t DialledEndpoint::Step() {
  const size_t copied = copier_.Step(kSliceBytes);
  busy_ = !copier_.idle();
  return copied;
}

void DialledEndpoint::Fence(FenceScope scope) {
  if (down_) return;
  copier_.Drop(scope.transfer, absl::CancelledError("shm: fenced before it was copied whole"));
  SayFenced(scope);
}

void DialledEndpoint::Shutdown(absl::Status why) {
  if (down_) return;
  SendFrame(FrameType::kBye, ForPeer(ToStd(why.message())));
  OnEnd(why);
}

void DialledEndpoint::OnEnd(const absl::Status& cause) {
  // This order is the accepting side's proof: first the copier stops, then the socket closes.
  copier_.DropAll(cause);
  GoDown(cause);
}

absl::StatusOr<std::unique_ptr<RemoteKey>> DialledEndpoint::Import(const RemoteRegion& region,
                                                                   std::string_view key) {
  if (region.kind != MemoryKind::kHost) {
    return absl::FailedPreconditionError("shm: only host memory can be reached");
  }
  const absl::StatusOr<RegionKey> decoded = DecodeKey(key);
  if (!decoded.ok()) return decoded.status();
  // What the peer sent before its metadata is in the socket already: the offer and the memfds.
  while (!down_ && (!offered_ || (decoded->mapped && !files_.contains(decoded->file))) &&
         Drain(1)) {
  }
  if (down_) return absl::UnavailableError("shm: the connection is down");
  if (!offered_) {
    return absl::UnavailableError(
        absl::StrCat("shm: process ", peer_.pid(), " has not authorised this connection yet"));
  }
  if (decoded->mapped) return ImportMapped(region, *decoded);
  if (!attach_.ok()) {
    return Annotate(attach_, absl::StrCat("shm: region ", static_cast<uint32_t>(region.id),
                                          " is not in shareable memory (take it from HostBuffer)"));
  }
  return std::make_unique<ShmRemoteKey>(this, region);
}

absl::StatusOr<std::unique_ptr<RemoteKey>> DialledEndpoint::ImportMapped(const RemoteRegion& region,
                                                                         const RegionKey& key) {
  const auto file = files_.find(key.file);
  if (file == files_.end()) {
    return absl::UnavailableError(
        absl::StrCat("shm: the memfd of region ", static_cast<uint32_t>(region.id), " of process ",
                     peer_.pid(), " has not come yet (or its registration is closed)"));
  }
  if (!file->second.fd.valid()) return file->second.lost;
  auto mapped = ShmRemoteKey::Map(this, region, file->second.fd.get(), key.offset);
  if (!mapped.ok()) {
    return Annotate(mapped.status(), absl::StrCat("shm: process ", peer_.pid()));
  }
  return std::unique_ptr<RemoteKey>(*std::move(mapped));
}

}  // namespace kvxfer::shm
