// What both sides of a connection do. ShmDialledEndpoint reads and writes the peer's memory;
// ShmAcceptedEndpoint lends its own.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_SHM_ENDPOINT_H_
#define KVXFER_BACKENDS_SHM_ENDPOINT_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/shm/channel.h"
#include "src/backends/shm/hub.h"
#include "src/transport/host/peer_process.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::shm {

class ShmEndpoint : public Endpoint, private net::Watcher {
 public:
  ~ShmEndpoint() override;

  bool Send(std::span<const std::byte> message) override;

  // Handles what has arrived in the ring, and sends what waited for space in it.
  void PollRing();
  // False: the ring holds something, so do not sleep.
  bool Arm() { return channel_.Arm(); }
  void Disarm() { channel_.Disarm(); }

  bool down() const { return down_; }

 protected:
  ShmEndpoint(Hub* hub, UniqueFd socket);

  absl::Status WatchSocket();
  // From now on the end of that process ends the connection.
  absl::Status WatchPeer(PeerProcess peer);

  // Handles a frame that is neither a message nor kBye. An error ends the connection.
  virtual absl::Status OnFrame(Channel::Frame& frame) = 0;
  // Nothing more arrives from the peer, or the connection is broken: stop, then call GoDown.
  virtual void OnEnd(const absl::Status& cause) = 0;
  // The send queue has been emptied.
  virtual void OnFlushed() {}

  // Begins the rings, where they are wanted (dialling side), or answers the peer's kRing. An error
  // ends the connection.
  absl::Status OfferRings();
  absl::Status TakeRings(const Channel::Frame& frame);

  // Receives up to `frames` frames. False: there was none, or the connection ended.
  bool Drain(size_t frames);
  void SendFrame(FrameType type, std::string_view body, int file = -1);
  // The socket has ended, and would be readable for ever.
  void StopReceiving();
  // Of a socket that is not watched: what waits in the queue is sent when it has space.
  void WatchForSpace();
  void Unwatch();
  // Closes the socket and reports kDown, which is the last event.
  void GoDown(const absl::Status& why);

  Hub* const hub_;
  Channel channel_;
  PeerProcess peer_;                       // pid 0: not known yet
  size_t max_message_ = kMaxMessageBytes;  // a longer one ends the connection
  bool closing_ = false;
  bool down_ = false;

 private:
  // Watches the peer's process; the endpoint itself watches the socket.
  class ExitWatcher final : public net::Watcher {
   public:
    explicit ExitWatcher(ShmEndpoint* endpoint) : endpoint_(endpoint) {}
    void OnReady(uint32_t) override { endpoint_->OnExit(); }

   private:
    ShmEndpoint* const endpoint_;
  };

  void OnReady(uint32_t events) override;
  void OnExit();
  void FlushQueue();
  bool HandleFrame(Channel::Frame& frame);
  // Handles kBell, kGrow, kNotGrown and kNoRings.
  absl::Status OnRingFrame(Channel::Frame& frame);
  // Tells the peer that there are no rings. An error: they are required.
  absl::Status DoWithoutRings(const absl::Status& why);
  // The rings are mapped: Poll looks at them from now on.
  void WatchRings();
  absl::Status EndCause() const;
  void UpdateSocketWatch();

  ExitWatcher exit_watcher_{this};
  bool watching_socket_ = false;
  bool watching_process_ = false;
  bool watching_rings_ = false;
  bool wants_write_ = false;
  std::string partial_;  // the parts of a message received so far
  std::string goodbye_;  // the text of the peer's kBye
  bool said_goodbye_ = false;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_ENDPOINT_H_
