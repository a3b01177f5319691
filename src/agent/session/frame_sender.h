// Sends the numbered frames of a session, each alone or piggybacked: where the peer writes to this
// agent too, a frame goes together with what the peer waits to be told. An acknowledgement by
// itself costs both sides a system call, and the peer perhaps a wake-up.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_FRAME_SENDER_H_
#define KVXFER_AGENT_SESSION_FRAME_SENDER_H_

#include "kvxfer/types.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/link.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

class FrameSender {
 public:
  // All of them outlive it.
  FrameSender(Runtime* runtime, Session* session, const Incarnation& peer)
      : runtime_(runtime), session_(session), peer_(peer) {}
  // Sends what the session has to send, as far as there is space. `link` is up. `inline_data`: data
  // waits in it for the next message over it.
  // False: a piggybacked frame found no space, and nothing more was tried.
  bool Send(Link& link, bool inline_data);

 private:
  bool SendPiggybacked(Link& link, bool inline_data);

  Runtime* const runtime_;
  Session* const session_;
  const Incarnation peer_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_FRAME_SENDER_H_
