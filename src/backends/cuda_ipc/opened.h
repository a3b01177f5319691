// Allocations of peers, made usable for copies from here: opened once in this backend, however many
// regions and links of one process use them, and closed soon after the last of those went
// (src/cuda/closer.h).
//
// Shared (shared_ptr) by the regions that lie in one allocation and by the copies under way, which
// must not find it closed; whichever goes last closes it.
//
// Lifetime: needs the driver alone, which stays.
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_OPENED_H_
#define KVXFER_BACKENDS_CUDA_IPC_OPENED_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/cuda_ipc/wire.h"
#include "src/cuda/driver.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::cuda_ipc {

// Whose memory it is.
struct MemoryOwner {
  uint32_t pid = 0;
  uint64_t start_time = 0;
  std::string device_uuid{};
  int ordinal = 0;  // of that device in its own process
  bool same_process = false;
  bool same_ipc_namespace = true;

  // "GPU 0 of process 1234".
  std::string ToString() const;
};

class OpenedMemory {
 public:
  virtual ~OpenedMemory() = default;
  // Where the allocation begins for kernels of `device`, opened for it at the first call.
  // Unavailable: not yet, as what was there before is still to be closed. Another error, with cause
  // and remedy: it cannot be.
  virtual absl::StatusOr<uint64_t> AddressFor(int device) = 0;
};

class OpenedTable {
 public:
  // The allocation that `part` is of; `file` is what came with it. What was opened before is used
  // again.
  absl::StatusOr<std::shared_ptr<OpenedMemory>> Find(const cuda::Driver* driver,
                                                     const MemoryOwner& owner,
                                                     const PartPacket& part, net::Fd file);

 private:
  struct Key {
    uint32_t pid = 0;
    uint64_t start_time = 0;
    uint64_t buffer_id = 0;
    uint64_t base = 0;
    uint64_t bytes = 0;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::weak_ptr<OpenedMemory>> opened_;
  size_t sweep_at_ = 64;  // entries at which those that are gone are taken out
};

// Whether kernels of one device of this process reach memory of another; FailedPrecondition, with
// what to look at.
absl::Status CheckPeerAccess(const cuda::Driver& driver, int from, int to);
// "NVLink", "PCIe", or "the same GPU"; of devices that reach each other.
std::string LinkBetween(const cuda::Driver& driver, int from, int to);

// Of an error that an agent would take for "not yet" makes one that it does not.
absl::Status ForGood(const absl::Status& status);

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_OPENED_H_
