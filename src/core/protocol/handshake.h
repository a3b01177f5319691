// Proves at the start of a connection, to each side, that the other side is the incarnation which
// it says it is: the owner of the key whose hash the incarnation is. Both signatures cover nonces
// of both sides, so that nothing of another connection proves anything on this one.
//
//   dials                          accepts
//     hello, key            -->
//                           <--      key, with a signature
//     proof: a signature    -->
//
// Pure: messages come in by Take, which returns the message that answers; nonces are given, and
// time-outs are the caller's. A side is in one State:
//
//   from         message   may become
//   kDialled     key       kProved
//   kOpen        hello     kHasHello
//   kOpen        key       kHasKey: messages may overtake each other
//   kHasHello    key       kAnswered
//   kHasKey      hello     kAnswered
//   kAnswered    proof     kProved
//   (each)       other     kFailed, also when a message is damaged or proves nothing
//
// The side that accepts does nothing for the other one before kProved, and signs and verifies once
// in the life of a connection.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_CORE_PROTOCOL_HANDSHAKE_H_
#define KVXFER_CORE_PROTOCOL_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "src/core/base/signing_key.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class Handshake {
 public:
  enum class State : uint8_t {
    kDialled,   // hello and key are on their way
    kOpen,      // accepting; nothing has come
    kHasHello,  // accepting; the key has not come
    kHasKey,    // accepting; the hello has not come
    kAnswered,  // accepting; the own key was returned by Take
    kProved,    // the other side is who it says
    kFailed,    // nothing of the connection may be believed
  };

  // What one side knows by itself.
  struct Side {
    const SigningKey* key = nullptr;  // outlives the handshake
    Incarnation incarnation{};        // of `key`
    Nonce nonce{};                    // random, new for each connection
    std::string backend{};            // the name of the backend that connects the two
    // What the backend itself knows of the connection, the same at both ends: a signature for one
    // connection proves nothing on another. Empty: nothing; no backend gives one yet.
    std::string binding{};
  };

  // A hello or key that is longer is refused.
  static constexpr size_t kMaxMessageBytes = 4096;

  // `hello.target` is the incarnation that is dialled. `link`: the connection's number, from 1.
  // `ack`: of the hello's envelope.
  static Handshake Dialling(Side side, uint64_t link, HelloFrame hello, uint64_t ack);
  static Handshake Accepting(Side side);

  State state() const { return state_; }
  // Dialling: the first two messages.
  const std::string& HelloMessage() const { return hello_message_; }
  std::string KeyMessage() const;

  // Takes a message of the other side, except a refusal. Returns the message that answers it;
  // empty: none. An error: kFailed, and refusal() is the reason.
  absl::StatusOr<std::string> Take(std::span<const std::byte> message);
  RefuseReason refusal() const { return refusal_; }

  // Accepting: what the other side has said, to be believed from kProved on.
  const HelloFrame& hello() const { return hello_; }
  uint64_t hello_ack() const { return hello_ack_; }
  uint64_t link() const { return dialled_.link; }  // what the other side calls the connection
  uint16_t version() const { return version_; }    // the highest that both speak

 private:
  // Part of what a signature covers, so that no side's signature stands for the other's.
  enum class Role : uint8_t { kDials = 1, kAccepts = 2 };

  Handshake(Side side, State state) : side_(std::move(side)), state_(state) {}

  absl::StatusOr<std::string> Handle(const Envelope& envelope, std::span<const std::byte> message);
  absl::Status TakeHello(const Envelope& envelope, std::span<const std::byte> message);
  absl::Status CheckHello();
  absl::Status TakeDialledKey(const Envelope& envelope);
  absl::StatusOr<std::string> AnswerKeys();
  absl::StatusOr<std::string> TakeAcceptedKey(const Envelope& envelope);
  absl::Status TakeProof(const Envelope& envelope);
  absl::Status CheckOwner(const PublicKey& key, const Incarnation& said) const;
  std::string Signed(Role role) const;
  absl::Status Refuse(RefuseReason reason, const std::string& text);

  Side side_;
  State state_;
  RefuseReason refusal_ = RefuseReason::kNotProved;
  HelloFrame hello_{};
  uint64_t hello_ack_ = 0;
  uint16_t version_ = 0;
  std::string hello_message_{};  // with its envelope
  KeyFrame dialled_{};
  KeyFrame accepted_{};  // without its signature
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_HANDSHAKE_H_
