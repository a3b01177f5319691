#include "src/backends/shm/dialled.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/backends/shm/regions.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/transport/host/mapping.h"
#include "src/transport/host/stream_copy.h"
#include "src/transport/unix_socket.h"

namespace kvxfer::shm {
namespace {

// How long messages that were sent before Shutdown wait for the peer to take them.
constexpr Duration kLinger = std::chrono::seconds(1);
// How long kQuiet waits: without it the peer would wait for the end of this process.
constexpr Duration kQuietLinger = std::chrono::seconds(10);

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

ShmDialledEndpoint::ShmDialledEndpoint(Hub* hub, UniqueFd socket)
    : ShmEndpoint(hub, std::move(socket)), copier_(this, &hub->events, &hub->threads) {}

ShmDialledEndpoint::~ShmDialledEndpoint() {
  if (busy_) std::erase(hub_->busy, this);
  std::erase(hub_->lingering, this);
  std::erase(hub_->held, this);
  if (!down_ && !held()) SayQuiet();
}

std::unique_ptr<ShmDialledEndpoint> ShmDialledEndpoint::Dial(Hub* hub, const Address& address) {
  absl::StatusOr<UniqueFd> socket = net::ConnectUnix(address.socket);
  const absl::Status connected = socket.status();
  std::unique_ptr<ShmDialledEndpoint> endpoint(
      new ShmDialledEndpoint(hub, socket.ok() ? *std::move(socket) : UniqueFd()));
  const absl::Status started =
      connected.ok() ? endpoint->Start(address)
                     : Annotate(connected, absl::StrCat("shm: process ", address.pid));
  if (!started.ok()) {
    endpoint->GoDown(started);
    return endpoint;
  }
  hub->events.Say(EventKind::kConnected, endpoint.get());
  return endpoint;
}

absl::Status ShmDialledEndpoint::Start(const Address& address) {
  const auto them = net::PeerCredentials(channel_.fd());
  if (!them.ok()) return Annotate(them.status(), "shm");
  absl::Status same = net::CheckCredentials(*them, address.pid, "shm");
  // Another backend serves peers in other namespaces, and that deserves no warning.
  if (absl::IsFailedPrecondition(same)) same = absl::UnavailableError(same.message());
  if (!same.ok()) return Annotate(same, "shm");
  auto peer = PeerProcess::Open(hub_->host, address.pid, address.start_time);
  if (!peer.ok()) return Annotate(peer.status(), "shm");
  if (absl::Status watched = WatchSocket(); !watched.ok()) return watched;
  if (absl::Status watched = WatchPeer(*std::move(peer)); !watched.ok()) return watched;
  copier_.SetPeer(&peer_, channel_.fd());
  const DialBody dial{.version = kWireVersion,
                      .pid = static_cast<uint32_t>(getpid()),
                      .start_time = hub_->host.start_time};
  SendFrame(FrameType::kDial, wire::Encode(dial));
  return OfferRings();
}

EndpointInfo ShmDialledEndpoint::Describe() const { return OneRail(Path()); }

std::string ShmDialledEndpoint::Path() const {
  const std::string whom = absl::StrCat("process ", peer_.pid(), ": ");
  if (!offered_) return absl::StrCat(whom, "not authorised yet");
  return absl::StrCat(
      whom,
      mapped_.ok() ? absl::StrCat("mapped memfd (", StreamCopyName(), " stores)")
                   : absl::StrCat("no mapping, ", mapped_.message()),
      " and ", attach_.ok() ? "cross-memory attach" : absl::StrCat("no ", attach_.message()));
}

absl::Status ShmDialledEndpoint::OnFrame(Channel::Frame& frame) {
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
  if (frame.type == FrameType::kForget) {
    if (const auto body = wire::TryDecode<ForgetBody>(frame.body)) {
      files_.erase(body->id);
      return absl::OkStatus();
    }
  }
  return absl::InternalError(
      absl::StrCat("shm: process ", peer_.pid(), " sent a frame out of place"));
}

absl::Status ShmDialledEndpoint::OnOffer(const OfferBody& offer, const Channel::Frame& frame) {
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

Posted ShmDialledEndpoint::Post(const Op& op) {
  if (down_ || closing_) return false;
  const Posted posted = copier_.Post(op);
  if (!copier_.idle() && !busy_) {
    busy_ = true;
    hub_->busy.push_back(this);
  }
  return posted;
}

size_t ShmDialledEndpoint::Step() {
  const size_t copied = copier_.Step(kSliceBytes);
  busy_ = !copier_.idle();
  return copied;
}

void ShmDialledEndpoint::Fence(FenceScope scope) {
  if (down_) return;
  copier_.Drop(scope.transfer, absl::CancelledError("shm: fenced before it was copied whole"));
  hub_->events.Push(MakeFenced(this, scope));
}

void ShmDialledEndpoint::Shutdown(absl::Status why) {
  if (down_ || closing_) return;
  SendFrame(FrameType::kBye, ForPeer(ToStd(why.message())));
  copier_.DropAll(why);
  closing_ = true;
  why_ = std::move(why);
  if (!channel_.queued()) return OnEnd(why_);
  Linger(kLinger);
}

// The list is in the order of the deadlines.
void ShmDialledEndpoint::Linger(Duration longest) {
  linger_until_ = Now() + longest;
  const auto later = std::ranges::find_if(
      hub_->lingering, [this](const auto* other) { return other->linger_until_ > linger_until_; });
  hub_->lingering.insert(later, this);
}

void ShmDialledEndpoint::OnFlushed() {
  if (closing_) OnEnd(why_);
}

// This order is the accepting side's proof: first the copies stop, then the socket closes.
void ShmDialledEndpoint::OnEnd(const absl::Status& cause) {
  copier_.DropAll(cause);
  std::erase(hub_->lingering, this);
  std::erase(hub_->held, this);
  if (!std::exchange(closing_, true)) why_ = cause;
  if (held()) {
    Unwatch();  // what the peer does does not matter any more
    hub_->held.push_back(this);
    return;
  }
  SayQuiet();
  channel_.Flush();
  if (quiet_said_ && channel_.queued() && !std::exchange(quiet_lingers_, true)) {
    WatchForSpace();
    return Linger(kQuietLinger);
  }
  GoDown(why_);
}

std::shared_ptr<CopyHold> ShmDialledEndpoint::HoldOpen() {
  if (down_ || closing_ || !offered_) return nullptr;
  if (hold_ == nullptr) {
    hold_ = std::make_shared<CopyHold>();
    SendFrame(FrameType::kHold, {});
  }
  // Until kHold is with the other side, the end of the socket would prove to it that no GPU copies.
  if (hold_->doubt || channel_.broken() || channel_.socket_queued()) return nullptr;
  return hold_;
}

// If it is in doubt whether the copies have ended, the accepting side waits for the end of this
// process.
void ShmDialledEndpoint::SayQuiet() {
  if (hold_ == nullptr || hold_->doubt || std::exchange(quiet_said_, true)) return;
  SendFrame(FrameType::kQuiet, {});
}

absl::StatusOr<std::unique_ptr<RemoteKey>> ShmDialledEndpoint::Import(const RemoteRegion& region,
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

absl::StatusOr<std::unique_ptr<RemoteKey>> ShmDialledEndpoint::ImportMapped(
    const RemoteRegion& region, const RegionKey& key) {
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
