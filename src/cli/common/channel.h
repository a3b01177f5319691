// Messages between two `kvxfer` processes that set up a run: metadata, commands and results, never
// blocks. Each message is a little-endian u32 length and a JSON object.
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

// Longest message; the metadata of hundreds of regions fits several times.
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
  // `socket` is a connected stream socket. Errors call the other side `peer`.
  Channel(UniqueFd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  // DeadlineExceeded: the other side reads nothing for `timeout`. Unavailable: it is gone.
  absl::Status Send(const Json& message, Duration timeout = std::chrono::seconds(10));
  // DeadlineExceeded: no whole message within `timeout`. Unavailable: the channel is closed, or the
  // other side is some other program, which sends no such messages. After an error the channel
  // cannot be used any longer.
  absl::StatusOr<Json> Receive(Duration timeout);
  // Like Receive, but returns a message of ErrorAnswer as the error that it carries.
  absl::StatusOr<Json> ReceiveAnswer(Duration timeout);
  // Send, then ReceiveAnswer.
  absl::StatusOr<Json> Call(const Json& message, Duration timeout);

  // Whether Receive would find a message, or find that the other side has closed.
  bool Readable() const;
  // Whether a short message could be sent without waiting, or would fail at once.
  bool Writable() const;
  // Whether the other side has closed (or died).
  bool Closed() const;
  // Wakes a thread that waits in Receive, which then finds the channel closed. Any thread may call
  // this.
  void Shutdown();
  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }

 private:
  absl::Status Transfer(char* bytes, size_t size, int16_t events, Duration timeout);

  UniqueFd socket_;
  std::string peer_;
};

// The message that makes ReceiveAnswer on the other side return `status`.
Json ErrorAnswer(const absl::Status& status);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_CHANNEL_H_
