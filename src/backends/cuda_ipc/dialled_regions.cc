// CudaIpcDialledEndpoint: what it knows about the peer's regions. It asks for them, opens them and
// forgets them.
//
// A key in metadata names a region but opens nothing. The handles are asked for on the lifeline
// when the agent first imports the region, and are sent once this side is authorised there.

#include <algorithm>
#include <utility>

#include "src/backends/cuda_ipc/accepted.h"
#include "src/backends/cuda_ipc/backend.h"
#include "src/backends/cuda_ipc/dialled.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::cuda_ipc {
namespace {

// The most asks without an answer. All of them, and kQuiet, fit into the socket.
constexpr size_t kMaxAsked = CudaIpcAcceptedEndpoint::kMaxAsks / 2;

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteKey>> CudaIpcDialledEndpoint::Import(
    const RemoteRegion& region, std::string_view key) {
  if (region.kind != MemoryKind::kCuda) {
    return absl::FailedPreconditionError("cuda_ipc: only GPU memory can be reached");
  }
  const absl::StatusOr<RegionKey> decoded = DecodeKey(key);
  if (!decoded.ok()) return decoded.status();
  if (decoded->rkey != region.rkey) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda_ipc: the key of region ", static_cast<uint32_t>(region.id),
                     " is of another registration; take the peer's metadata again"));
  }
  if (!up() || ended_ || lifeline_ == nullptr) {
    return absl::UnavailableError("cuda_ipc: the connection is not up");
  }
  const auto [it, first] = wanted_.try_emplace(decoded->region);
  Wanted& wanted = it->second;
  if (first) {
    wanted.rkey = decoded->rkey;
    to_ask_.push_back(decoded->region);
    AskNext();
  }
  if (wanted.rkey != decoded->rkey) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda_ipc: region ", static_cast<uint32_t>(region.id), " of process ",
                     host_.pid, " has another key than is known; take its metadata again"));
  }
  if (wanted.answered) {
    if (wanted.failed.ok() && wanted.coming == nullptr) wanted.coming = wanted.known.lock();
    if (wanted.failed.ok() && wanted.coming == nullptr) {
      wanted_.erase(it);  // it was released
      return Import(region, key);
    }
    absl::StatusOr<std::unique_ptr<RemoteKey>> made = MakeKey(region, wanted);
    if (made.ok()) return made;
    // If it cannot be opened, the next Import asks for it again.
    if (!absl::IsUnavailable(made.status())) wanted_.erase(it);
    return Annotate(made.status(), "cuda_ipc");
  }
  return absl::UnavailableError(absl::StrCat("cuda_ipc: what process ", host_.pid,
                                             " has to say of region ",
                                             static_cast<uint32_t>(region.id),
                                             " is on its way, or it has not authorised "
                                             "this connection yet"));
}

// Makes the agent's key. Unavailable: not yet.
absl::StatusOr<std::unique_ptr<RemoteKey>> CudaIpcDialledEndpoint::MakeKey(const RemoteRegion& told,
                                                                           Wanted& wanted) {
  if (!wanted.failed.ok()) return ForGood(wanted.failed);
  const std::shared_ptr<PeerRegion>& region = wanted.coming;
  if (region->base() != told.base || region->bytes() != told.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("region ", static_cast<uint32_t>(told.id), " of ", region->owner().ToString(),
                     " is not what the metadata say; take them again"));
  }
  for (const int device : backend_->devices()) {
    if (absl::Status open = region->OpenMissing(device); !open.ok()) return open;
  }
  wanted.known = region;
  return std::make_unique<CudaIpcRemoteKey>(this, told, std::move(wanted.coming));
}

void CudaIpcDialledEndpoint::AskNext() {
  while (asked_ < kMaxAsked && !to_ask_.empty()) {
    const uint64_t region = to_ask_.front();
    to_ask_.pop_front();
    const auto it = wanted_.find(region);
    if (it == wanted_.end()) continue;
    ++asked_;
    lifeline_->Send(PacketType::kAsk,
                    wire::Encode(AskPacket{.region = region, .rkey = it->second.rkey}));
  }
}

absl::Status CudaIpcDialledEndpoint::OnPacket(Lifeline::Packet& packet) {
  if (down() || ended_) return absl::OkStatus();
  if (packet.type == PacketType::kRegion) {
    if (const auto region = wire::TryDecode<RegionPacket>(packet.body)) return OnRegion(*region);
  } else if (packet.type == PacketType::kPart) {
    const auto part = wire::TryDecode<PartPacket>(packet.body);
    if (part) return OnPart(*part, std::move(packet.file));
  } else if (packet.type == PacketType::kRefused) {
    if (const auto refused = wire::TryDecode<RefusedPacket>(packet.body))
      return OnRefused(*refused);
  } else if (packet.type == PacketType::kForget) {
    if (const auto forget = wire::TryDecode<ForgetPacket>(packet.body)) {
      OnForget(forget->region);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError("the peer sent a cuda_ipc packet that has no place here");
}

void CudaIpcDialledEndpoint::Answered(Wanted& wanted, absl::Status failed) {
  wanted.answered = true;
  wanted.failed = std::move(failed);
  if (!wanted.failed.ok()) wanted.coming.reset();
  --asked_;
  AskNext();
}

absl::Status CudaIpcDialledEndpoint::OnRegion(const RegionPacket& packet) {
  const auto it = wanted_.find(packet.region);
  if (it == wanted_.end() || it->second.answered || it->second.coming != nullptr) {
    return absl::InvalidArgumentError("the peer described a region that was not asked for");
  }
  MemoryOwner owner = owner_;
  owner.device_uuid.assign(packet.device.begin(), std::ranges::find(packet.device, '\0'));
  owner.ordinal = packet.ordinal;
  absl::StatusOr<std::shared_ptr<PeerRegion>> region = PeerRegion::Begin(packet, std::move(owner));
  if (!region.ok()) return region.status();
  it->second.coming = *std::move(region);
  return absl::OkStatus();
}

// A part that cannot be opened makes its region fail. The remaining parts are received and dropped.
absl::Status CudaIpcDialledEndpoint::OnPart(const PartPacket& packet, net::Fd file) {
  const auto it = wanted_.find(packet.region);
  if (it == wanted_.end() || it->second.answered || it->second.coming == nullptr) {
    return absl::InvalidArgumentError("the peer described memory that was not asked for");
  }
  Wanted& wanted = it->second;
  if (absl::Status sense = wanted.coming->Check(packet); !sense.ok()) return sense;
  const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  wanted.failed.Update(driver.status());
  if (wanted.failed.ok()) {
    wanted.failed = wanted.coming->Add(*driver, backend_->opened(), packet, std::move(file));
  }
  if (!wanted.failed.ok()) wanted.coming->Skip(packet);
  for (const int device : backend_->devices()) {
    // MakeKey reports it.
    if (wanted.failed.ok()) wanted.coming->OpenMissing(device).IgnoreError();
  }
  if (wanted.coming->whole()) Answered(wanted, wanted.failed);
  return absl::OkStatus();
}

absl::Status CudaIpcDialledEndpoint::OnRefused(const RefusedPacket& packet) {
  const auto it = wanted_.find(packet.region);
  if (it == wanted_.end() || it->second.answered) {
    return absl::InvalidArgumentError("the peer refused a region that was not asked for");
  }
  const auto code = static_cast<absl::StatusCode>(packet.code);
  const bool known = packet.code > 0 && packet.code <= 16 && code != kTimedOut;
  Answered(it->second,
           absl::Status(known ? code : absl::StatusCode::kInternal,
                        absl::StrCat("process ", host_.pid, " does not give it: ", packet.why)));
  return absl::OkStatus();
}

// If an answer is still in progress, it ends with kRefused.
void CudaIpcDialledEndpoint::OnForget(uint64_t region) {
  const auto it = wanted_.find(region);
  if (it == wanted_.end() || !it->second.answered) return;
  if (const auto known = it->second.known.lock()) known->SetGone();
  wanted_.erase(it);
}

void CudaIpcDialledEndpoint::ReleaseAll() {
  for (auto& [number, wanted] : wanted_) {
    if (const auto known = wanted.known.lock()) known->Release();
  }
  wanted_.clear();
  to_ask_.clear();
}

}  // namespace kvxfer::cuda_ipc
