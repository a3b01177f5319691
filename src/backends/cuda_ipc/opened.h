// Peers' allocations, opened for copies from here. An allocation is opened once in this backend,
// however many regions and endpoints use it, and is closed soon after its last user is gone
// (src/cuda/closer.h).
//
// shared_ptr, because the regions that lie in an allocation and the copies under way share it, and
// none of them may find it closed; the last one closes it.
//
// Lifetime: needs only the CUDA driver, which is never unloaded.
// Thread-safety: none; called by the agent's driver only.

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
  int ordinal = 0;  // of the device in its owner's process
  bool same_process = false;
  bool same_ipc_namespace = true;

  // "GPU 0 of process 1234".
  std::string ToString() const;
};

class OpenedMemory {
 public:
  virtual ~OpenedMemory() = default;
  // The address of the allocation for kernels of `device`; the first call opens it for that device.
  // Unavailable: not yet, because an earlier mapping at its address is still being closed. Any
  // other error, with cause and fix: it cannot be opened.
  virtual absl::StatusOr<uint64_t> AddressFor(int device) = 0;
};

class OpenedTable {
 public:
  // The allocation that contains `part`. `file` is the descriptor that came with the packet. An
  // allocation that is open already is used again.
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
  size_t sweep_at_ = 64;  // when to remove entries of closed allocations
};

// OK: kernels of device `from` of this process reach memory of device `to`. FailedPrecondition:
// they do not; the error says what to look at.
absl::Status CheckPeerAccess(const cuda::Driver& driver, int from, int to);
// "NVLink", "PCIe", or "the same GPU". The devices must reach each other.
std::string LinkBetween(const cuda::Driver& driver, int from, int to);

// Turns an error that an agent would take for "try again" (Unavailable) into a permanent one.
absl::Status ForGood(const absl::Status& status);

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_OPENED_H_
