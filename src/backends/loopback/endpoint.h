// One side of a loopback connection. The side that connected also has the queue of ops.
//
// Thread-safety: none; called by its agent's driver only. State that other threads touch is in
// Connection.

#ifndef KVXFER_BACKENDS_LOOPBACK_ENDPOINT_H_
#define KVXFER_BACKENDS_LOOPBACK_ENDPOINT_H_

#include <deque>
#include <memory>
#include <vector>

#include "src/backends/loopback/connection.h"

namespace kvxfer::loopback {

class LoopbackBackend;

inline constexpr uint32_t kMaxRails = 16;
inline constexpr uint64_t kSliceBytes = 256 * 1024;  // copied between two looks at the mailbox

class LoopbackEndpoint : public Endpoint {
 public:
  LoopbackEndpoint(LoopbackBackend* backend, std::shared_ptr<Connection> connection, Side side);
  ~LoopbackEndpoint() override;

  EndpointInfo Describe() const override;
  void Authorize() override;
  // Only queues the op; Poll copies it, so that a large write does not delay its submitter.
  Posted Post(const Op& op) override;
  bool Send(std::span<const std::byte> message) override;
  // Of a transfer: rails do not fail alone here.
  void Fence(FenceScope scope) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  const Connection& connection() const { return *connection_; }
  Side side() const { return side_; }
  size_t queued() const { return queued_; }  // ops
  bool listed = false;  // the backend's: it is among those that have ops queued
  // True: an op can be copied now.
  bool HasWork() const { return queued_ > 0 && !closing_ && connection_->authorized(); }
  // Copies at most one slice for each rail. Returns the number of bytes.
  uint64_t Advance();
  // kDown was received: every op completes with `why`, and none is accepted from now on.
  void OnDown(const absl::Status& why);
  // The backend is destroyed first. The endpoint remains, closed.
  void Detach();

 private:
  struct Queued {
    Op op;
    CopyCursor cursor;
  };
  using RailQueue = std::deque<Queued>;

  uint64_t AdvanceRail(RailQueue& rail, uint64_t budget);
  void Complete(const Op& op, absl::Status status);

  LoopbackBackend* backend_;  // null after Detach
  const std::shared_ptr<Connection> connection_;
  const Side side_;
  bool closing_ = false;
  std::vector<RailQueue> rails_;
  size_t queued_ = 0;  // in them
};

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_ENDPOINT_H_
