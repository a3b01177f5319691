// A connection to one peer: a control stream (src/transport), a lifeline for memory handles and for
// detecting the end, and rings for messages. This class has what both sides share;
// CudaIpcDialledEndpoint and CudaIpcAcceptedEndpoint are the two sides.
//
// Messages begin on the control stream. In each direction they go over to the ring once, when the
// receiver has mapped it: behind its last message on the stream the sender says OverRings there,
// and the receiver looks into the ring from then on. So no message comes twice, late or out of
// order. If there are no rings (an option, or a lack of descriptors or memory), messages stay on
// the stream. At the end the receiver takes out what the ring still holds before it heeds the
// stream's end.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_
#define KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/cuda_ipc/lifeline.h"
#include "src/transport/control_endpoint.h"
#include "src/transport/ring_pair.h"

namespace kvxfer::cuda_ipc {

class CudaIpcBackend;

class CudaIpcEndpoint : public net::ControlEndpoint, private net::RingPair::Socket {
 public:
  // --- Endpoint ---
  bool Send(std::span<const std::byte> message) override;
  void Shutdown(absl::Status why) override {
    SendRemainder();
    ControlEndpoint::Shutdown(std::move(why));
  }

  // --- for the backend ---
  // A turn of the rings and of the lifeline; the latter also for an endpoint that is down but not
  // quiet yet.
  void WorkAside();
  virtual bool HasWorkAside() const { return lifeline_ != nullptr && lifeline_->HasWork(); }
  // Accepting side: takes a lifeline whose first packet was `dial`, if it belongs to this endpoint.
  // True: taken.
  virtual bool Join(std::unique_ptr<Lifeline>& /*lifeline*/, const DialPacket& /*dial*/) {
    return false;
  }
  // Accepting side: a region of this process is closed.
  virtual void Forget(uint64_t /*region*/) {}
  // Connecting side: the backend is being destroyed and waits for what has begun.
  virtual void StopData() {}
  // From now on the peer rings the bell for a message. False: there is one already.
  bool ArmRings();
  void DisarmRings() { rings_.Disarm(); }

 protected:
  CudaIpcEndpoint(CudaIpcBackend* backend, net::PeerAddress peer);
  CudaIpcEndpoint(CudaIpcBackend* backend, net::Fd control, std::string from);

  // Handles a packet. An error ends the endpoint.
  virtual absl::Status OnPacket(Lifeline::Packet& packet) = 0;
  // Everything queued has been sent: sends what comes next.
  virtual void Serve() {}
  // Checks whether the peer's process still exists.
  virtual void Watch() {}
  // The peer has ended or is ending. The control stream gets a little time to deliver what was sent
  // before, including the reason.
  void Expect(absl::Status end);

  // Connecting side, once the lifeline is there: passes rings, if they are wanted. An error ends
  // the endpoint.
  absl::Status OfferRings();
  // The peer has said OverRings, or Remainder; no other frame has a place once the endpoint is up.
  absl::Status OnRingsFrame(const Frame& frame);
  // ", control over shm".
  std::string ControlPath() const;

  std::optional<Time> DataDeadline() const override { return end_at_; }
  void OnDataDeadline(Time now) override;
  bool HasDataWork() const override { return RingFilled(); }
  // What comes on the stream follows what the ring holds.
  bool MustWait(net::ControlKind /*kind*/, bool /*after_message*/) const override {
    return RingFilled();
  }
  std::vector<net::Fd> ReleaseData() override;

  CudaIpcBackend* backend_;  // null once detached
  std::unique_ptr<Lifeline> lifeline_;
  size_t max_message_ = net::kMaxMessageBytes;  // a longer one in a ring ends the endpoint

 private:
  enum class Over : uint8_t { kStream, kRings };

  void ReadLifeline();
  // Receives one packet and handles it.
  Lifeline::Got TakePacket();

  // --- endpoint_rings.cc ---
  void PassRingFrame(net::RingFrame frame, int file) override;
  absl::Status OnRingPacket(Lifeline::Packet& packet);
  absl::Status TakeRings(const net::Fd& file);
  absl::Status OnBell(net::Fd bell);
  // Tells the peer that this side uses no rings. An error: they are required.
  absl::Status DoWithoutRings(const absl::Status& why);
  bool RingFilled() const { return receives_over_ == Over::kRings && !down() && rings_.filled(); }
  void ReadRings();
  absl::Status TakePart(const net::RingPair::Part& part);
  absl::Status OnRemainder(const Remainder& rest);
  void SendRemainder();

  net::RingPair rings_{this};
  Over sends_over_ = Over::kStream;
  Over receives_over_ = Over::kStream;
  std::string message_;  // the parts received so far
  std::optional<Time> end_at_;
  absl::Status end_;
  uint64_t last_words_ = 0;  // message_poll() when end_at_ was set
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_
