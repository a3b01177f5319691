// Opens a control stream, at the connecting side: tries the peer's addresses in order, sends the
// preamble, and reads the welcome.
//
// Another agent may be listening at one of the addresses. What it answers is reported only if the
// expected agent is at none of them.
//
// Thread-safety: none; used by the agent's driving thread.

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
  // The agent pings over the control stream; this time-out detects a dead path to the peer there.
  static constexpr unsigned kUserTimeoutMs = 2000;

  enum class State : uint8_t { kBusy, kJoined, kFailed };

  // `label` begins errors, e.g. "tcp peer". `timeout` applies to each address. `control` must
  // outlive this object, which alone uses it until kJoined.
  Dialler(std::string_view label, PeerAddress peer, Service service, uint32_t rails,
          Duration timeout, ControlStream* control);

  void Start();
  // Makes progress when the stream is ready.
  void Work();
  // Until the connection is established nothing can be read, and only the socket's readiness
  // counts.
  bool HasWork() const { return greeted_ ? control_->readable() : control_->writable(); }
  // The attempt in progress took too long.
  void OnDeadline();

  State state() const { return state_; }
  const absl::Status& status() const { return status_; }  // set in kFailed
  const LinkId& link() const { return link_; }            // set in kJoined
  std::optional<Time> deadline() const { return deadline_; }
  // The address that is being tried, or that has accepted.
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
  absl::Status refused_;  // the first refusal of another agent at a candidate
  std::optional<Time> deadline_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_DIALLER_H_
