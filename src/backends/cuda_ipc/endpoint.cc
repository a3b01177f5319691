#include "src/backends/cuda_ipc/endpoint.h"

#include <utility>

#include "src/backends/cuda_ipc/backend.h"

namespace kvxfer::cuda_ipc {
namespace {

// The limits of one turn. A packet may cause memory to be opened, which takes 10 us, or some
// milliseconds if it is large.
constexpr int kPacketsPerTurn = 16;
constexpr Duration kLongestTurn = std::chrono::milliseconds(1);
// How long the control stream may still deliver the reason of the end.
constexpr Duration kLastWords = std::chrono::milliseconds(100);

}  // namespace

CudaIpcEndpoint::CudaIpcEndpoint(CudaIpcBackend* backend, net::PeerAddress peer)
    : ControlEndpoint(&backend->hub(), std::move(peer)), backend_(backend) {}

CudaIpcEndpoint::CudaIpcEndpoint(CudaIpcBackend* backend, net::Fd control, std::string from)
    : ControlEndpoint(&backend->hub(), std::move(control), std::move(from)), backend_(backend) {}

void CudaIpcEndpoint::WorkAside() {
  ReadRings();
  Watch();
  if (lifeline_ != nullptr && lifeline_->HasWork()) ReadLifeline();
  if (lifeline_ != nullptr && !lifeline_->sending()) Serve();
}

void CudaIpcEndpoint::ReadLifeline() {
  const Time end = Now() + kLongestTurn;
  for (int i = 0; i < kPacketsPerTurn && lifeline_ != nullptr && lifeline_->HasWork(); ++i) {
    if (Now() > end) break;
    lifeline_->Flush();
    if (!lifeline_->sending()) Serve();
    if (TakePacket() == Lifeline::Got::kEnd) return;
  }
}

Lifeline::Got CudaIpcEndpoint::TakePacket() {
  Lifeline::Packet packet;
  const Lifeline::Got got = lifeline_->Receive(packet);
  if (got == Lifeline::Got::kEnd) {
    Expect(absl::UnavailableError("the peer's process has ended, or dropped the connection"));
  }
  if (got != Lifeline::Got::kPacket) return got;
  const bool of_rings = packet.type >= PacketType::kRings && packet.type <= PacketType::kNoRings;
  if (absl::Status status = of_rings ? OnRingPacket(packet) : OnPacket(packet); !status.ok()) {
    Fail(status);
  }
  return got;
}

void CudaIpcEndpoint::Expect(absl::Status end) {
  if (end_at_ || down() || backend_ == nullptr) return;
  end_at_ = Now() + kLastWords;
  last_words_ = message_poll();
  end_ = std::move(end);
  Reschedule();
}

// Messages that the peer sent before its end may still be on their way. While they come, the end
// waits: on a busy machine they take longer than kLastWords.
void CudaIpcEndpoint::OnDataDeadline(Time now) {
  if (!end_at_ || *end_at_ > now) return;
  if (HasWork() || std::exchange(last_words_, message_poll()) != message_poll()) {
    end_at_ = now + kLastWords;
  } else {
    Fail(end_);
  }
}

}  // namespace kvxfer::cuda_ipc
