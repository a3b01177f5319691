// What the processes of this example have besides kvxfer: local sockets, made before the fork.
// Every wait has a deadline, and a peer that is gone is an error at once.
//
// `Channel`: commands and replies between the router and a worker; a service has RPC here.
// `TensorGroup`: exchange within one instance; a service has NCCL here.
//
// Thread-safety: one thread at a time.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_CHANNEL_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_CHANNEL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace disagg {

using Milliseconds = std::chrono::milliseconds;

// One end of a local connection, which keeps messages apart.
class Channel {
 public:
  static absl::StatusOr<std::pair<Channel, Channel>> MakePair();

  Channel() = default;
  Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Channel& operator=(Channel&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  absl::Status Send(std::span<const std::byte> message, Milliseconds timeout) const;
  // DeadlineExceeded; Unavailable: the other end is gone.
  absl::StatusOr<std::vector<std::byte>> Receive(Milliseconds timeout) const;

 private:
  explicit Channel(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// The ranks of one tensor-parallel instance.
class TensorGroup {
 public:
  // One for each rank, to be handed to its process.
  static absl::StatusOr<std::vector<TensorGroup>> Make(uint32_t size);

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(others_.size()); }

  // `values` has an equal part for each rank. Gives this rank's part to the others and fills in
  // theirs. All ranks call it, with as many values.
  absl::Status AllGather(std::span<float> values) const;
  // Whether all ranks say so; the same answer at all of them.
  absl::StatusOr<bool> AllOf(bool mine) const;

 private:
  uint32_t rank_ = 0;
  std::vector<Channel> others_;  // by rank; its own is not open
};

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_CHANNEL_H_
