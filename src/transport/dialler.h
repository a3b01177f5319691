// The connecting side's way to a control stream that was welcomed: tries the addresses of a peer in
// their order, sends the preamble, reads the welcome.
//
// An agent that is not the one meant may live at one of the addresses; what it says is told only if
// the one meant is at none.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_TRANSPORT_DIALLER_H_
#define KVXFER_TRANSPORT_DIALLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"
#include "src/transport/control_stream.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::net {

class Dialler {
 public:
  // A dead path to the peer is found on the control stream, on which the agent pings.
  static constexpr unsigned kUserTimeoutMs = 2000;

  enum class State : uint8_t { kBusy, kJoined, kFailed };

  // `label`: how errors begin, e.g. "tcp peer". `timeout` is for each address. `control` outlives
  // this and is this one's until kJoined.
  Dialler(std::string_view label, PeerAddress peer, Service service, uint32_t rails,
          Duration timeout, ControlStream* control);

  void Start();
  // What there is to do when the stream is ready.
  void Work();
  // Before the connection is made there is nothing to read, and nobody tries: only the flag stands.
  bool HasWork() const { return greeted_ ? control_->readable() : control_->writable(); }
  // The attempt under way took too long.
  void OnDeadline();

  State state() const { return state_; }
  const absl::Status& status() const { return status_; }  // of kFailed
  const LinkId& link() const { return link_; }            // of kJoined
  std::optional<Time> deadline() const { return deadline_; }
  // The address that is tried now, or that has joined.
  const SocketAddress& address() const { return peer_.candidates[candidate_]; }
  const PeerAddress& peer() const { return peer_; }

 private:
  void Dial();
  void TryNext(const absl::Status& why);
  void End(absl::Status why);
  void SendPreamble();
  void ReceiveWelcome();

  const std::string label_;
  const PeerAddress peer_;
  const Service service_;
  const uint32_t rails_;
  const Duration timeout_;
  ControlStream* const control_;
  State state_ = State::kBusy;
  bool greeted_ = false;
  size_t candidate_ = 0;
  LinkId link_{};
  absl::Status status_;
  absl::Status refused_;  // what the first other agent at a candidate said
  std::optional<Time> deadline_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_DIALLER_H_
