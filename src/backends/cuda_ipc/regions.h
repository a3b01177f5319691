// Local GPU memory as this backend knows it: whether another process can be given it, and how it is
// described to that process.
//
// Lifetime: a registration may outlive its backend; it then does nothing.
// Thread-safety: ExamineShareable, and making a registration, from any thread; the rest is called
// by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_REGIONS_H_
#define KVXFER_BACKENDS_CUDA_IPC_REGIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/cuda_ipc/wire.h"
#include "src/cuda/driver.h"
#include "src/cuda/memory.h"
#include "src/cuda/watched_span.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::cuda_ipc {

inline bool Holds(uint64_t base, uint64_t size, uint64_t address, uint64_t bytes) {
  return address >= base && bytes <= size && address - base <= size - bytes;
}

// Examines `span` and sets its SYNC_MEMOPS. Errors as cuda::Examine; FailedPrecondition, with cause
// and fix: memory of this kind cannot be given to another process.
absl::StatusOr<cuda::DeviceSpan> ExamineShareable(const MemorySpan& span);

class CudaIpcRegistration final : public Registration {
 public:
  // Is notified when a registration closes.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnClosed(const CudaIpcRegistration& registration) = 0;
  };

  CudaIpcRegistration(Owner* owner, uint64_t number, const LocalRegion& region,
                      const cuda::Driver* driver, cuda::DeviceSpan span);
  ~CudaIpcRegistration() override {
    if (owner_ != nullptr) owner_->OnClosed(*this);
  }
  // The backend is being destroyed first.
  void Detach() { owner_ = nullptr; }

  uint64_t number() const { return number_; }
  uint32_t rkey() const { return rkey_; }
  int device() const { return watched_.span().device; }
  bool Contains(uint64_t address, uint64_t bytes) const {
    return Holds(watched_.span().base, watched_.span().bytes, address, bytes);
  }
  // The same span serves all registrations' checks: copies check the memory that they touch in it.
  cuda::WatchedSpan& watched() const { return watched_; }

  size_t parts() const { return watched_.span().parts.size(); }
  RegionPacket Describe() const;
  // Describes one part for a peer in this or another process; `file` goes with it. The handle is
  // made in this call, and this process keeps nothing of it.
  absl::StatusOr<PartPacket> Export(size_t index, bool same_process, net::Fd& file) const;

 private:
  absl::Status ExportLegacy(PartPacket& out) const;
  absl::Status ExportVirtual(const cuda::Allocation& part, PartPacket& out, net::Fd& file) const;

  Owner* owner_;
  const uint64_t number_;
  const uint32_t rkey_;
  const Access access_;
  const cuda::Driver* const driver_;
  const std::string device_uuid_;
  mutable cuda::WatchedSpan watched_;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_REGIONS_H_
