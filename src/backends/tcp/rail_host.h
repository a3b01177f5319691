// What a rail needs of whoever runs it: its endpoint, on the agent's driving thread, or a data
// thread (data_thread.h).
//
// Thread-safety: none; called by the one thread that runs the rail.

#ifndef KVXFER_BACKENDS_TCP_RAIL_HOST_H_
#define KVXFER_BACKENDS_TCP_RAIL_HOST_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/transport/regions.h"

namespace kvxfer::tcp {

// The bytes of RailHost::scratch.
inline constexpr size_t kScratchBytes = 256 * 1024;

class RailHost {
 public:
  virtual ~RailHost() = default;

  // False: what the rail would tell has to wait, so it receives nothing now.
  virtual bool CanTakeEvents() const = 0;
  // Asked before each read. False: something comes before the bytes that wait in the socket.
  virtual bool MayRead() = 0;
  // A buffer for one system call.
  virtual std::span<std::byte> scratch() = 0;
  virtual StagePool& stages() = 0;
  // See net::RegionMap::Check.
  virtual absl::StatusOr<const net::Region*> Check(const net::WireRun& run, Access wanted) = 0;

  // --- what has happened on `rail` ---
  virtual void OnMarker(uint64_t transfer, uint32_t rail) = 0;
  virtual void OnImmediate(uint32_t rail, uint32_t immediate) = 0;
  virtual void OnCompletion(uint64_t op, uint32_t rail, absl::Status status) = 0;
  // Bytes were sent whose acknowledgements must be watched; not said again while they are.
  virtual void OnSent(uint32_t rail) = 0;
};

// The host that a rail was lent by, on the driving thread.
class RailHome : public RailHost {
 public:
  // The life `life` of a lent rail has failed; it may have ended meanwhile.
  virtual void OnLentFailed(uint32_t rail, uint32_t life, const absl::Status& why) = 0;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_RAIL_HOST_H_
