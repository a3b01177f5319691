// One domain of a provider (a device or a network interface): endpoints and registrations are made
// from it.
//
// Thread-safety: Register and RegisterGpu: any thread, also beside the driver's calls, because the
// domain is opened as FI_THREAD_SAFE. Everything else is called by the agent's driver only.

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

// The access flags that libfabric needs.
uint64_t FlagsOf(Access access);

class Domain {
 public:
  // Opens the domains that `options` names, in that order, each once; without names the first one
  // that the provider has. Domains are asked to accept GPU memory only if this process uses CUDA by
  // now, because what providers do for that would initialise CUDA. `host`: the address at which
  // peers are to reach this agent, for providers that use host addresses; empty: any.
  static absl::StatusOr<std::vector<std::unique_ptr<Domain>>> OpenAll(
      const LibfabricOptions& options, const std::string& host);

  const fi_info& info() const { return *info_; }
  fid_domain* get() const { return domain_.get(); }
  fid_eq* events() const { return events_.get(); }
  // "tcp;ofi_rxm:eth0".
  std::string Name() const;
  // True: peers name memory by address. False: by the offset in its region.
  bool virtual_addresses() const { return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0; }
  // True: a write can put an immediate into its target's completion queue.
  bool carries_immediates() const { return info_->domain_attr->cq_data_size >= sizeof(uint32_t); }
  size_t max_pieces() const;

  // For host memory.
  absl::StatusOr<FiPtr<fid_mr>> Register(const MemorySpan& span, Access access) const;
  // For GPU memory. FailedPrecondition: this domain accepts no GPU memory. Another error: it does
  // not accept this memory. The message says what to do.
  absl::StatusOr<FiPtr<fid_mr>> RegisterGpu(const cuda::DirectSpan& span, Access access) const;
  // Logs the errors that the provider reports. Endpoints need none of them: their own completions
  // tell what concerns them.
  void ReadEvents() const;

  // A few bytes without content: the source of a write that has no bytes of its own.
  static constexpr size_t kNothing = 8;
  const void* nothing() const { return scratch_.data(); }
  void* nothing_desc() const { return fi_mr_desc(scratch_mr_.get()); }
  // Where peers write such bytes, as they have to name it.
  uint64_t sink() const;
  uint64_t sink_key() const { return fi_mr_key(scratch_mr_.get()); }

 private:
  static constexpr size_t kSinkOffset = 64;

  explicit Domain(bool asked_for_gpus) : asked_for_gpus_(asked_for_gpus) {}
  // A random key of the length that the provider takes.
  uint64_t NewKey() const;
  // Registers `span` as a dmabuf, if libfabric and the GPU driver support that. Returns a negative
  // libfabric error otherwise.
  int RegisterDmabuf(const cuda::DirectSpan& span, fi_mr_attr attr, fid_mr** mr) const;
  static absl::StatusOr<std::unique_ptr<Domain>> Open(fi_info* info, bool asked_for_gpus);
  // Finds out whether the device reaches GPU memory. If not, sets gpus_reached_ to the reason, and
  // GPU memory is no longer accepted.
  absl::Status ProbeGpus();

  const bool asked_for_gpus_;
  InfoPtr info_;
  FiPtr<fid_fabric> fabric_;
  FiPtr<fid_eq> events_;
  FiPtr<fid_domain> domain_;
  absl::Status gpus_reached_;
  // nothing() and, at kSinkOffset, sink().
  std::array<std::byte, 128> scratch_{};
  FiPtr<fid_mr> scratch_mr_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_DOMAIN_H_
