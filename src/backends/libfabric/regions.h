// Registrations of local memory with all domains, and keys to memory of peers.
//
// A key lists the keys of all domains of its owner. Its form: one byte for the version, four for
// the agent's own rkey, then nine bytes for each domain, in the owner's order (1 if its memory is
// named by address, 0 if by offset; then its key).
//
// Lifetime: a registration may outlive its backend; it then does nothing.
// Thread-safety: registrations are made on any thread, and everything else is called by the agent's
// driver only.

#ifndef KVXFER_BACKENDS_LIBFABRIC_REGIONS_H_
#define KVXFER_BACKENDS_LIBFABRIC_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/libfabric/domain.h"
#include "src/transport/open_registrations.h"

namespace kvxfer::libfabric {

class LibfabricRegistration;

using Registrations = net::OpenRegistrations<LibfabricRegistration>;

class LibfabricRegistration final : public Registration {
 public:
  // Called on any thread. `all` has to outlive the registration, unless Close is called first.
  static absl::StatusOr<std::unique_ptr<LibfabricRegistration>> Make(
      const LocalRegion& region, std::span<const std::unique_ptr<Domain>> domains,
      Registrations* all);
  ~LibfabricRegistration() override;

  void* desc(size_t domain) const { return fi_mr_desc(holds_[domain].mr.get()); }
  const cuda::Device* gpu() const { return gpu_; }
  const cuda::Driver* driver() const { return driver_; }
  // The backend is being destroyed before the registration.
  void Close() {
    holds_.clear();
    all_ = nullptr;
  }

 private:
  struct Hold {
    FiPtr<fid_mr> mr;
    bool by_address = false;
  };
  LibfabricRegistration() = default;

  absl::Status RegisterHost(const LocalRegion& region,
                            std::span<const std::unique_ptr<Domain>> domains);
  absl::Status RegisterGpu(const LocalRegion& region,
                           std::span<const std::unique_ptr<Domain>> domains);

  std::string EncodeKey(uint32_t rkey) const;

  Registrations* all_ = nullptr;          // null: not complete yet, or the backend is gone
  const cuda::Driver* driver_ = nullptr;  // of GPU memory
  const cuda::Device* gpu_ = nullptr;     // null: host memory
  std::vector<Hold> holds_;
};

class LibfabricRemoteKey final : public RemoteKey {
 public:
  static absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> Decode(const RemoteRegion& region,
                                                                    std::string_view key);
  bool has(size_t domain) const { return domain < entries_.size(); }
  uint64_t key(size_t domain) const { return entries_[domain].key; }
  // How the peer's domain names the memory that its owner has at `address`.
  uint64_t Place(size_t domain, uint64_t address) const {
    return entries_[domain].by_address ? address : address - base_;
  }

 private:
  struct Entry {
    bool by_address = false;
    uint64_t key = 0;
  };
  uint64_t base_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_REGIONS_H_
