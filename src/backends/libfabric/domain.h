// One domain of a provider (a device, or a network interface): what endpoints and registrations
// are made of.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_DOMAIN_H_
#define KVXFER_BACKENDS_LIBFABRIC_DOMAIN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/libfabric/fi.h"
#include "src/backends/libfabric/options.h"
#include "src/cuda/gpu_direct.h"

namespace kvxfer::libfabric {

inline constexpr size_t kMaxDomains = 16;

// Rights as libfabric has them.
uint64_t FlagsOf(Access access);

class Domain {
 public:
  // Those of `options`, in that order, each once; without names the first that the provider has.
  // They are asked to take memory of GPUs where this process uses CUDA by now, and no earlier: what
  // providers do for it would initialise CUDA.
  // `host`: the address to be reached at, for providers that go by addresses of hosts; empty: any.
  static absl::StatusOr<std::vector<std::unique_ptr<Domain>>> OpenAll(
      const LibfabricOptions& options, const std::string& host);

  const fi_info& info() const { return *info_; }
  fid_domain* get() const { return domain_.get(); }
  fid_eq* events() const { return events_.get(); }
  // "tcp;ofi_rxm:eth0".
  std::string Name() const;
  // Whether peers name its memory by address; else by the offset in a region.
  bool virtual_addresses() const { return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0; }
  // Whether a write can bring an immediate to its target's completion queue.
  bool carries_immediates() const { return info_->domain_attr->cq_data_size >= sizeof(uint32_t); }
  size_t max_runs() const;

  // Of the host's.
  absl::StatusOr<FiPtr<fid_mr>> Register(const MemorySpan& span, Access access) const;
  // FailedPrecondition: this domain takes no memory of GPUs; another error: not this one. With the
  // remedy.
  absl::StatusOr<FiPtr<fid_mr>> RegisterGpu(const cuda::DirectSpan& span, Access access) const;
  // Says what the provider has to tell of itself, which is nothing to links: their own completions
  // say what concerns them.
  void ReadEvents() const;

  // A few bytes that hold nothing: what is written where a write has no bytes of its own.
  static constexpr size_t kNothing = 8;
  const void* nothing() const { return scratch_.data(); }
  void* nothing_desc() const { return fi_mr_desc(scratch_mr_.get()); }
  // And where peers write them, as they are to name it.
  uint64_t sink() const;
  uint64_t sink_key() const { return fi_mr_key(scratch_mr_.get()); }

 private:
  static constexpr size_t kSinkOffset = 64;

  explicit Domain(bool asked_for_gpus) : asked_for_gpus_(asked_for_gpus) {}
  // For fi_mr_reg.
  uint64_t NewKey() const;
  // Negative, as libfabric says it. By dmabuf, where libfabric and the driver have that.
  int RegisterDmabuf(const cuda::DirectSpan& span, fi_mr_attr attr, fid_mr** mr) const;
  static absl::StatusOr<std::unique_ptr<Domain>> Open(fi_info* info, bool asked_for_gpus);
  // Whether the device reaches GPU memory; where it does not, gpus_reached_ says why and it is
  // taken no more.
  absl::Status ProbeGpus();

  const bool asked_for_gpus_;
  InfoPtr info_;
  FiPtr<fid_fabric> fabric_;
  FiPtr<fid_eq> events_;
  FiPtr<fid_domain> domain_;
  absl::Status gpus_reached_;
  std::array<std::byte, 128> scratch_{};
  FiPtr<fid_mr> scratch_mr_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_DOMAIN_H_
