// CudaIpcEndpoint: the rings, and the messages that go through them.

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/backends/cuda_ipc/backend.h"
#include "src/backends/cuda_ipc/endpoint.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/transport/event_queue.h"
#include "src/transport/host/growing_ring.h"

namespace kvxfer::cuda_ipc {
namespace {

// For one endpoint, so that a peer that sends a lot does not starve the others.
constexpr int kPartsPerTurn = 32;
// Records do not count packets of the lifeline: no message refers to one.
constexpr uint64_t kAfterNothing = 0;

PacketType TypeOf(net::RingFrame frame) {
  switch (frame) {
    case net::RingFrame::kRings:
      return PacketType::kRings;
    case net::RingFrame::kBell:
      return PacketType::kBell;
    case net::RingFrame::kGrow:
      return PacketType::kGrow;
    case net::RingFrame::kNotGrown:
      break;
  }
  return PacketType::kNotGrown;
}

}  // namespace

bool CudaIpcEndpoint::Send(std::span<const std::byte> message) {
  if (sends_over_ == Over::kStream) return ControlEndpoint::Send(message);
  if (!up() || message.size() > net::kMaxMessageBytes ||
      rings_.queued_bytes() >= net::ControlStream::kMaxQueued) {
    return false;
  }
  rings_.Send(message, kAfterNothing);
  return true;
}

void CudaIpcEndpoint::PassRingFrame(net::RingFrame frame, int file) {
  if (lifeline_ == nullptr) return;
  if (frame == net::RingFrame::kBell && file < 0 && lifeline_->sending()) return;
  // Without a copy the packet goes alone, and the peer sees that there was no descriptor.
  net::Fd copy;
  if (file >= 0) copy = net::Fd::Open([file] { return ::fcntl(file, F_DUPFD_CLOEXEC, 0); });
  lifeline_->Send(TypeOf(frame), {}, std::move(copy));
}

absl::Status CudaIpcEndpoint::OfferRings() {
  absl::Status made = backend_->ring_choice().Wanted();
  if (made.ok()) made = rings_.Offer(backend_->bell());
  return made.ok() ? made : DoWithoutRings(made);
}

absl::Status CudaIpcEndpoint::TakeRings(const net::Fd& file) {
  if (connecting()) return absl::InvalidArgumentError("the peer offers rings to who connected");
  absl::Status taken = backend_->ring_choice().Wanted();
  if (taken.ok()) taken = rings_.Take(file, backend_->bell());
  return taken.ok() || absl::IsInvalidArgument(taken) ? taken : DoWithoutRings(taken);
}

absl::Status CudaIpcEndpoint::DoWithoutRings(const absl::Status& why) {
  lifeline_->Send(PacketType::kNoRings,
                  wire::Encode(NoRingsPacket{.why = ForPeer(ToStd(why.message()))}));
  return backend_->ring_choice().DoWithout(why);
}

absl::Status CudaIpcEndpoint::OnRingPacket(Lifeline::Packet& packet) {
  if (down()) return absl::OkStatus();
  switch (packet.type) {
    case PacketType::kRings:
      return TakeRings(packet.file);
    case PacketType::kBell:
      return OnBell(std::move(packet.file));
    case PacketType::kGrow:
      return rings_.TakeGrowth(packet.file);
    case PacketType::kNotGrown:
      return rings_.TakeNotGrown(kAfterNothing);
    default:
      break;
  }
  const auto none = wire::TryDecode<NoRingsPacket>(packet.body);
  if (!none) return absl::InvalidArgumentError("the peer sent a cuda_ipc packet that is damaged");
  if (absl::Status taken = rings_.TakeNone(); !taken.ok()) return taken;
  return backend_->ring_choice().DoWithout(absl::UnavailableError(
      absl::StrCat("the peer has none: ", ToAbsl(Printable(none->why, kMaxPeerTextBytes)))));
}

absl::Status CudaIpcEndpoint::OnBell(net::Fd bell) {
  if (absl::Status taken = rings_.TakeBell(std::move(bell)); !taken.ok()) return taken;
  if (!rings_.mapped() || sends_over_ == Over::kRings) return absl::OkStatus();
  if (!rings_.ready()) {
    return backend_->ring_choice().DoWithout(
        absl::ResourceExhaustedError("no descriptor left for the peer's bell"));
  }
  Tell(Encode(OverRings{}));
  sends_over_ = Over::kRings;
  return absl::OkStatus();
}

absl::Status CudaIpcEndpoint::OnRingsFrame(const Frame& frame) {
  if (const auto* const rest = std::get_if<Remainder>(&frame)) return OnRemainder(*rest);
  if (!std::holds_alternative<OverRings>(frame) || !rings_.mapped() ||
      receives_over_ == Over::kRings) {
    return absl::InvalidArgumentError("the peer sent a cuda_ipc frame that has no place here");
  }
  receives_over_ = Over::kRings;
  return absl::OkStatus();
}

absl::Status CudaIpcEndpoint::OnRemainder(const Remainder& rest) {
  if (receives_over_ == Over::kStream) {
    return absl::InvalidArgumentError("the peer sent the rest of a ring that it does not use");
  }
  // The peer has ended before it heard that this side could not map its large ring.
  if (rest.large != 0 && rings_.peer_growth() != RingGrowth::kLarge) {
    return absl::UnavailableError("the peer closed the connection, and its last messages are lost");
  }
  return TakePart({.more = rest.more != 0, .body = rest.body});
}

void CudaIpcEndpoint::SendRemainder() {
  if (!up() || sends_over_ == Over::kStream) return;
  rings_.Flush(kAfterNothing);
  const bool large = rings_.growth() == RingGrowth::kLarge;
  rings_.TakeWaiting(Remainder::kMaxBytes, [&](const net::RingPair::Part& part) {
    Tell(Encode(Remainder{.more = part.more ? uint8_t{1} : uint8_t{0},
                          .large = large ? uint8_t{1} : uint8_t{0},
                          .bytes = static_cast<uint16_t>(part.body.size()),
                          .body = std::string(part.body)}));
  });
}

bool CudaIpcEndpoint::ArmRings() {
  return receives_over_ == Over::kStream || down() || rings_.Arm();
}

void CudaIpcEndpoint::ReadRings() {
  if (rings_.queued()) rings_.Flush(kAfterNothing);
  // A message is reported at once or left where it is, because its bytes are valid only until the
  // next Poll.
  for (int i = 0; i < kPartsPerTurn && RingFilled() && !sink().full(); ++i) {
    net::RingPair::Part part;
    const net::RingPair::Got got = rings_.Receive(kAfterNothing, backend_->ring_buffer(), part);
    if (got == net::RingPair::Got::kNothing) return;
    // The peer had sent a packet before it put this into the ring, so it is there already.
    if (got == net::RingPair::Got::kBehind && lifeline_ != nullptr &&
        TakePacket() != Lifeline::Got::kNothing) {
      continue;
    }
    if (got != net::RingPair::Got::kPart) {
      return Fail(absl::InvalidArgumentError("the peer's ring makes no sense"), "ring");
    }
    if (absl::Status taken = TakePart(part); !taken.ok()) return Fail(taken, "ring");
  }
}

// Call it only while the sink is not full.
absl::Status CudaIpcEndpoint::TakePart(const net::RingPair::Part& part) {
  if (message_.size() + part.body.size() > max_message_) {
    return absl::InvalidArgumentError("the peer sent a message beyond the bound");
  }
  message_.append(part.body);
  if (part.more) return absl::OkStatus();
  Event event = MakeEvent(EventKind::kMessage, this);
  event.message = backend_->KeepMessage(std::exchange(message_, {}));
  Emit(std::move(event));
  return absl::OkStatus();
}

std::string CudaIpcEndpoint::ControlPath() const {
  return sends_over_ == Over::kRings ? ", control over shm" : ", control over tcp";
}

std::vector<net::Fd> CudaIpcEndpoint::ReleaseData() {
  rings_.Close();
  return {};
}

}  // namespace kvxfer::cuda_ipc
