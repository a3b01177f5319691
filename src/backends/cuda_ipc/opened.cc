#include "src/backends/cuda_ipc/opened.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "src/core/base/strings.h"
#include "src/cuda/closer.h"
#include "src/cuda/memory.h"

namespace kvxfer::cuda_ipc {
namespace {

using cuda::api::CUdeviceptr;
using cuda::api::CUresult;
constexpr CUresult kSuccess = cuda::api::CUDA_SUCCESS;

std::string NameOf(const cuda::Driver& driver, int device) {
  const absl::StatusOr<const cuda::Device*> found = driver.device(device);
  return found.ok() ? (*found)->name : std::string();
}

// The most likely reason why `device` cannot open memory of `owner`.
std::string LikelyCause(const cuda::Driver& driver, const MemoryOwner& owner, int device) {
  if (driver.FindUuid(owner.device_uuid) == nullptr) {
    return "its GPU is not visible in this process: show all GPUs of the host to both "
           "(CUDA_VISIBLE_DEVICES, the container's GPUs)";
  }
  if (!owner.same_ipc_namespace) {
    return "the two processes are in different IPC namespaces: run both containers with one "
           "(--ipc=host, or --ipc=container:...)";
  }
  if (absl::StrContains(NameOf(driver, device), "MIG")) {
    return "memory does not cross MIG instances: put both processes on one, or take MIG off";
  }
  return "the memory was freed there meanwhile, or a container's filter stands between the two "
         "processes (--ipc=host, --pid=host)";
}

absl::Status OpenError(const cuda::Driver& driver, const MemoryOwner& owner, int device,
                       CUresult result, std::string_view call) {
  const absl::Status error = ForGood(driver.Error(result, call));
  return absl::Status(error.code(),
                      absl::StrCat("GPU ", device, " cannot use memory of ", owner.ToString(), ": ",
                                   error.message(), "; ", LikelyCause(driver, owner, device)));
}

// Also OK if it is unknown which device of this process is the owner's.
absl::Status CheckReach(const cuda::Driver& driver, const MemoryOwner& owner, int device) {
  const cuda::Device* const theirs = driver.FindUuid(owner.device_uuid);
  if (theirs == nullptr) return absl::OkStatus();
  return CheckPeerAccess(driver, device, theirs->ordinal);
}

// Memory of this process, at the address that its owner uses.
class OwnMemory final : public OpenedMemory {
 public:
  OwnMemory(const cuda::Driver* driver, MemoryOwner owner, uint64_t base)
      : driver_(driver), owner_(std::move(owner)), base_(base) {}

  absl::StatusOr<uint64_t> AddressFor(int device) override {
    if (device == owner_.ordinal) return base_;
    absl::Status enabled = driver_->EnablePeerAccess(device, owner_.ordinal);
    if (!enabled.ok()) return ForGood(enabled);
    return base_;
  }

 private:
  const cuda::Driver* const driver_;
  const MemoryOwner owner_;
  const uint64_t base_;
};

// Memory opened by cuIpcOpenMemHandle, once per device: a mapping belongs to one context.
class LegacyMemory final : public OpenedMemory {
 public:
  LegacyMemory(const cuda::Driver* driver, MemoryOwner owner,
               const cuda::api::CUipcMemHandle& handle, uint64_t bytes)
      : driver_(driver), owner_(std::move(owner)), handle_(handle), bytes_(bytes) {}
  ~LegacyMemory() override {
    for (const auto& [device, at] : at_) Close(device, at);
  }

  absl::StatusOr<uint64_t> AddressFor(int device) override {
    if (const auto it = at_.find(device); it != at_.end()) return it->second;
    if (absl::Status reach = CheckReach(*driver_, owner_, device); !reach.ok()) return reach;
    const cuda::ContextScope scope(*driver_, device);
    if (!scope.status().ok()) return ForGood(scope.status());
    CUdeviceptr at = 0;
    // Read before the call: a mapping that is closed meanwhile may still have caused the error.
    const bool closing = cuda::Closing();
    const CUresult result = driver_->calls().cuIpcOpenMemHandle_v2(
        &at, handle_, cuda::api::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == cuda::api::CUDA_ERROR_ALREADY_MAPPED && closing) {
      return absl::UnavailableError(
          absl::StrCat("what was mapped before in the place of memory of ", owner_.ToString(),
                       " is still to be closed; try again"));
    }
    if (result != kSuccess) {
      return OpenError(*driver_, owner_, device, result, "cuIpcOpenMemHandle");
    }
    if (absl::Status large = CheckSize(at); !large.ok()) {
      Close(device, at);
      return large;
    }
    at_.emplace(device, at);
    return at;
  }

 private:
  // CUDA may know either the allocation alone or the whole block that contains it.
  absl::Status CheckSize(CUdeviceptr at) const {
    CUdeviceptr base = 0;
    size_t size = 0;
    const CUresult asked = driver_->calls().cuMemGetAddressRange_v2(&base, &size, at);
    if (asked != kSuccess || (at - base <= size && bytes_ <= size - (at - base))) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(owner_.ToString(), " calls an allocation ",
                                                      bytes_, " bytes large that has fewer (", size,
                                                      ")"));
  }
  void Close(int device, CUdeviceptr at) const {
    cuda::CloseLater([driver = driver_, device, at] {
      const cuda::ContextScope scope(*driver, device);
      if (scope.status().ok()) driver->calls().cuIpcCloseMemHandle(at);
    });
  }

  const cuda::Driver* const driver_;
  const MemoryOwner owner_;
  const cuda::api::CUipcMemHandle handle_;
  const uint64_t bytes_;
  std::map<int, CUdeviceptr> at_;
};

// Memory from cuMemCreate, mapped at an address of its own. Access is granted to one device after
// another.
class VirtualMemory final : public OpenedMemory {
 public:
  // `file` is kept until the first device needs it.
  VirtualMemory(const cuda::Driver* driver, MemoryOwner owner, const PartPacket& part, net::Fd file)
      : driver_(driver), owner_(std::move(owner)), part_(part), file_(std::move(file)) {}
  ~VirtualMemory() override {
    if (device_ < 0) return;
    cuda::CloseLater([driver = driver_, device = device_, memory = memory_, at = at_,
                      mapped = mapped_, bytes = bytes()] {
      const cuda::ContextScope scope(*driver, device);
      if (!scope.status().ok()) return;
      const cuda::api::Calls& calls = driver->calls();
      if (mapped) calls.cuMemUnmap(at, bytes);
      if (at != 0) calls.cuMemAddressFree(at, bytes);
      calls.cuMemRelease(memory);
    });
  }

  absl::StatusOr<uint64_t> AddressFor(int device) override {
    if (std::ranges::find(devices_, device) != devices_.end()) return at_;
    if (absl::Status reach = CheckReach(*driver_, owner_, device); !reach.ok()) return reach;
    const cuda::ContextScope scope(*driver_, device);
    if (!scope.status().ok()) return ForGood(scope.status());
    if (absl::Status taken = Take(device); !taken.ok()) return taken;
    if (absl::Status mapped = Map(device); !mapped.ok()) return mapped;
    const cuda::api::CUmemAccessDesc access{
        .location = {.type = cuda::api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = cuda::api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUresult result = driver_->calls().cuMemSetAccess(at_, bytes(), &access, 1);
    if (result != kSuccess) return OpenError(*driver_, owner_, device, result, "cuMemSetAccess");
    devices_.push_back(device);
    return at_;
  }

 private:
  size_t bytes() const { return part_.allocation_bytes; }

  // Makes an allocation handle from what the owner sent.
  absl::Status Take(int device) {
    if (device_ >= 0) return absl::OkStatus();
    const cuda::api::Calls& calls = driver_->calls();
    CUresult result = kSuccess;
    std::string_view call = "cuMemImportFromShareableHandle";
    if (part_.form == HandleForm::kFile) {
      if (!file_.valid()) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the descriptor of memory of ", owner_.ToString(),
                         " was lost on its way; raise RLIMIT_NOFILE in both processes"));
      }
      result = calls.cuMemImportFromShareableHandle(
          &memory_, reinterpret_cast<void*>(static_cast<intptr_t>(file_.get())),
          cuda::api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    } else if (part_.form == HandleForm::kFabric) {
      cuda::api::CUmemFabricHandle handle{};
      std::memcpy(handle.data, part_.handle.data(), sizeof(handle.data));
      result = calls.cuMemImportFromShareableHandle(&memory_, &handle,
                                                    cuda::api::CU_MEM_HANDLE_TYPE_FABRIC);
    } else if (!owner_.same_process) {
      return absl::InvalidArgumentError(
          absl::StrCat(owner_.ToString(), " offers memory in a form that has no place here"));
    } else {
      call = "cuMemRetainAllocationHandle";
      result = calls.cuMemRetainAllocationHandle(
          &memory_, reinterpret_cast<void*>(static_cast<uintptr_t>(part_.base)));
    }
    if (result != kSuccess) return OpenError(*driver_, owner_, device, result, call);
    device_ = device;
    file_.Reset();
    return absl::OkStatus();
  }

  absl::Status Map(int device) {
    const cuda::api::Calls& calls = driver_->calls();
    if (at_ == 0) {
      CUdeviceptr at = 0;
      const CUresult result = calls.cuMemAddressReserve(&at, bytes(), 0, 0, 0);
      if (result != kSuccess) {
        return OpenError(*driver_, owner_, device, result, "cuMemAddressReserve");
      }
      at_ = at;
    }
    if (mapped_) return absl::OkStatus();
    const CUresult result = calls.cuMemMap(at_, bytes(), 0, memory_, 0);
    if (result != kSuccess) return OpenError(*driver_, owner_, device, result, "cuMemMap");
    mapped_ = true;
    return absl::OkStatus();
  }

  const cuda::Driver* const driver_;
  const MemoryOwner owner_;
  const PartPacket part_;
  net::Fd file_;
  int device_ = -1;  // the device in whose context `memory_` was obtained; -1: it was not
  cuda::api::CUmemGenericAllocationHandle memory_ = 0;
  CUdeviceptr at_ = 0;
  bool mapped_ = false;
  std::vector<int> devices_;
};

// Memory of this process from cuMemCreate. At its owner's address only the devices have access that
// the owner chose, so any other device needs a mapping of its own.
class OwnVirtualMemory final : public OpenedMemory {
 public:
  OwnVirtualMemory(const cuda::Driver* driver, const MemoryOwner& owner, const PartPacket& part)
      : owner_(owner), base_(part.allocation_base), elsewhere_(driver, owner, part, {}) {}
  absl::StatusOr<uint64_t> AddressFor(int device) override {
    if (device == owner_.ordinal) return base_;
    return elsewhere_.AddressFor(device);
  }

 private:
  const MemoryOwner owner_;
  const uint64_t base_;
  VirtualMemory elsewhere_;
};

absl::StatusOr<std::shared_ptr<OpenedMemory>> Open(const cuda::Driver* driver,
                                                   const MemoryOwner& owner, const PartPacket& part,
                                                   net::Fd file) {
  if (owner.same_process != (part.form == HandleForm::kNone)) {
    return absl::InvalidArgumentError(
        absl::StrCat(owner.ToString(), " offers memory in a form that has no place here"));
  }
  const bool is_virtual = part.kind == static_cast<uint32_t>(cuda::AllocationKind::kVirtual);
  if (owner.same_process && is_virtual) {
    return std::make_shared<OwnVirtualMemory>(driver, owner, part);
  }
  if (owner.same_process) return std::make_shared<OwnMemory>(driver, owner, part.allocation_base);
  if (part.form != HandleForm::kLegacy) {
    return std::make_shared<VirtualMemory>(driver, owner, part, std::move(file));
  }
  cuda::api::CUipcMemHandle handle{};
  std::memcpy(handle.reserved, part.handle.data(), sizeof(handle.reserved));
  return std::make_shared<LegacyMemory>(driver, owner, handle, part.allocation_bytes);
}

}  // namespace

std::string MemoryOwner::ToString() const {
  return absl::StrCat("GPU ", ordinal, " of ",
                      same_process ? std::string("this process") : absl::StrCat("process ", pid));
}

absl::StatusOr<std::shared_ptr<OpenedMemory>> OpenedTable::Find(const cuda::Driver* driver,
                                                                const MemoryOwner& owner,
                                                                const PartPacket& part,
                                                                net::Fd file) {
  const Key key{.pid = owner.pid,
                .start_time = owner.start_time,
                .buffer_id = part.buffer_id,
                .base = part.allocation_base,
                .bytes = part.allocation_bytes};
  // The key includes the buffer id: addresses are reused by later allocations.
  std::weak_ptr<OpenedMemory>& entry = opened_[key];
  if (std::shared_ptr<OpenedMemory> known = entry.lock()) return known;
  absl::StatusOr<std::shared_ptr<OpenedMemory>> opened = Open(driver, owner, part, std::move(file));
  if (!opened.ok()) {
    opened_.erase(key);
    return opened;
  }
  entry = *opened;
  if (opened_.size() >= sweep_at_) {
    std::erase_if(opened_, [](const auto& one) { return one.second.expired(); });
    sweep_at_ = 64 + 2 * opened_.size();
  }
  return opened;
}

absl::Status CheckPeerAccess(const cuda::Driver& driver, int from, int to) {
  if (from == to) return absl::OkStatus();
  const cuda::api::Calls& calls = driver.calls();
  cuda::api::CUdevice handles[2] = {};
  int can = 0;
  CUresult result = calls.cuDeviceGet(&handles[0], from);
  if (result == kSuccess) result = calls.cuDeviceGet(&handles[1], to);
  if (result == kSuccess) result = calls.cuDeviceCanAccessPeer(&can, handles[0], handles[1]);
  if (result != kSuccess) return ForGood(driver.Error(result, "cuDeviceCanAccessPeer"));
  if (can != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "GPU ", from, " cannot reach memory of GPU ", to,
      ": there is no peer-to-peer path between them (nvidia-smi topo -p2p r; a virtual machine, "
      "ACS of a PCIe switch or an IOMMU may be in the way)"));
}

std::string LinkBetween(const cuda::Driver& driver, int from, int to) {
  if (from == to) return "the same GPU";
  const cuda::api::Calls& calls = driver.calls();
  cuda::api::CUdevice handles[2] = {};
  int atomics = 0;
  CUresult result = calls.cuDeviceGet(&handles[0], from);
  if (result == kSuccess) result = calls.cuDeviceGet(&handles[1], to);
  // PCIe has no atomics between GPUs, so native atomics mean NVLink.
  if (result == kSuccess) {
    result = calls.cuDeviceGetP2PAttribute(
        &atomics, cuda::api::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, handles[0],
        handles[1]);
  }
  return result == kSuccess && atomics != 0 ? "NVLink" : "PCIe";
}

absl::Status ForGood(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

}  // namespace kvxfer::cuda_ipc
