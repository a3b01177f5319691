// Where the control streams of one hub receive. What comes is handled in the same turn, as a rule,
// so the streams share this space, and an idle one holds no bytes of its own. A stream moves out
// what it has not handled by the next turn, for example half a message.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_RECEIVE_SPACE_H_
#define KVXFER_TRANSPORT_RECEIVE_SPACE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace kvxfer::net {

class ReceiveSpace {
 public:
  using Bytes = std::unique_ptr<std::byte[]>;

  // Either of the two may be destroyed first.
  class User {
   public:
    // The space is used anew: bytes in it that are still needed must be moved out now.
    virtual void MoveOut() = 0;

   protected:
    ~User();

   private:
    friend class ReceiveSpace;
    ReceiveSpace* space_ = nullptr;  // that has its bytes
  };

  // What a user gets at once. A small write and its OPEN fit into it.
  static constexpr size_t kReadBytes = 32 * 1024;

  ReceiveSpace() = default;
  ~ReceiveSpace();
  ReceiveSpace(const ReceiveSpace&) = delete;
  ReceiveSpace& operator=(const ReceiveSpace&) = delete;

  // A turn begins. Everything that was lent or kept in the last one is gone after this call.
  void BeginTurn();
  // Space of kReadBytes, until the next call. If nobody else has used any since, it may be what
  // this user has used in this turn, of which it must need nothing more.
  std::span<std::byte> Lend(const User* user);
  // `user` has put `bytes` into the space that it was lent; they stay until BeginTurn, which asks
  // the user to move out.
  void Use(User* user, size_t bytes);
  // Keeps a user's own bytes until BeginTurn.
  void Keep(Bytes bytes) { kept_.push_back(std::move(bytes)); }

 private:
  static constexpr size_t kChunkBytes = 2 * kReadBytes;
  // What streams that receive a lot at once need; those of a burst are freed.
  static constexpr size_t kMaxIdleChunks = 8;

  std::vector<Bytes> chunks_;
  size_t chunk_ = 0;  // the one in use
  size_t used_ = 0;   // bytes of it
  const User* last_ = nullptr;
  size_t last_used_ = 0;      // bytes of the chunk in use that the last user has used
  std::vector<User*> users_;  // of this turn
  std::vector<Bytes> kept_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_RECEIVE_SPACE_H_
