// Messages between two `kvxfer` processes that set up a run: metadata, what to do, what came out.
// Never the blocks themselves. Each message is a little-endian u32 length and a JSON object.
//
// Thread-safety: one thread at a time.
#ifndef KVXFER_CLI_COMMON_CHANNEL_H_
#define KVXFER_CLI_COMMON_CHANNEL_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// Longest message; a metadata blob of hundreds of regions fits many times.
inline constexpr uint32_t kMaxChannelMessage = 1u << 20;

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

class Channel {
 public:
  Channel() = default;
  // A connected stream socket. `peer` is what errors call the other side.
  Channel(UniqueFd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  // DeadlineExceeded when the other side takes nothing for `timeout`; Unavailable when it is gone.
  absl::Status Send(const Json& message, Duration timeout = std::chrono::seconds(10));
  // DeadlineExceeded: no whole message within `timeout`; Unavailable: closed, or what came is no
  // message, so that some other program is at the other end. After an error the channel is of no
  // more use.
  absl::StatusOr<Json> Receive(Duration timeout);
  // Receive; a message with a field "error" (see ErrorAnswer) is returned as that error.
  absl::StatusOr<Json> ReceiveAnswer(Duration timeout);
  // Send, then ReceiveAnswer.
  absl::StatusOr<Json> Call(const Json& message, Duration timeout);

  // Whether Receive would find something, if only that the other side has closed.
  bool Readable() const;
  // Whether a short message could be sent without waiting, or would fail at once.
  bool Writable() const;
  // Whether the other side has closed (or died).
  bool Closed() const;
  // Wakes a thread that waits in Receive: it finds the channel closed. Any thread may call it.
  void Shutdown();
  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }

 private:
  absl::Status Transfer(char* bytes, size_t size, int16_t events, Duration timeout);

  UniqueFd socket_;
  std::string peer_;
};

// The answer that makes the other side's ReceiveAnswer return `status`.
Json ErrorAnswer(const absl::Status& status);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_CHANNEL_H_
