// What the CUDA driver reports about each GPU of this process.

#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/base/sysfs.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

std::string HexDigits(const CUuuid& uuid) {
  std::string text;
  for (const char byte : uuid.bytes) {
    absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  }
  return text;
}

// `told` is the CUDA driver's answer, which it has from 12.2 on. For older ones ask the PCI bus.
int NumaNodeOf(int told, const std::string& pci) {
  if (told >= 0) return told;
  const Sysfs host;
  return static_cast<int>(
      host.ReadInt(absl::StrCat("/sys/bus/pci/devices/", pci, "/numa_node")).value_or(-1));
}

}  // namespace

absl::Status Driver::FindDevices() {
  int count = 0;
  if (auto status = Error(calls_.cuDeviceGetCount(&count), "cuDeviceGetCount"); !status.ok()) {
    return status;
  }
  if (count == 0) return Error(CUDA_ERROR_NO_DEVICE, "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto device = Describe(ordinal);
    if (!device.ok()) return Annotate(device.status(), absl::StrCat("GPU ", ordinal));
    devices_.push_back(*std::move(device));
  }
  return absl::OkStatus();
}

// An attribute that the CUDA driver does not know counts as a feature that the device lacks.
absl::StatusOr<Device> Driver::Describe(int ordinal) const {
  Device out{.ordinal = ordinal};
  CUdevice device = 0;
  if (auto status = Error(calls_.cuDeviceGet(&device, ordinal), "cuDeviceGet"); !status.ok()) {
    return status;
  }
  const auto ask = [&](CUdevice_attribute attribute, int unknown = 0) {
    int value = 0;
    return calls_.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : unknown;
  };
  std::array<char, 256> text{};
  if (calls_.cuDeviceGetName(text.data(), text.size(), device) == CUDA_SUCCESS) {
    out.name = text.data();
  }
  // The second version returns a MIG instance's own UUID, not that of the whole GPU.
  CUuuid uuid{};
  if (auto status = Error(calls_.cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid");
      !status.ok()) {
    return status;
  }
  out.uuid = HexDigits(uuid);
  if (calls_.cuDeviceGetPCIBusId(text.data(), text.size(), device) == CUDA_SUCCESS) {
    out.pci = text.data();  // in upper case; sysfs uses lower case
    for (char& c : out.pci) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (calls_.cuDeviceTotalMem_v2(&out.memory, device) != CUDA_SUCCESS) out.memory = 0;
  out.compute = 10 * ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  out.multiprocessors = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  out.numa_node = NumaNodeOf(ask(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1), out.pci);
  out.integrated = ask(CU_DEVICE_ATTRIBUTE_INTEGRATED) != 0;
  out.virtual_memory = ask(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  out.fd_handles = ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  out.fabric_handles = ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  out.gpu_direct = ask(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0;
  out.dmabuf = calls_.cuMemGetHandleForAddressRange != nullptr &&
               ask(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  out.stream_values = calls_.cuStreamWaitValue32_v2 != nullptr &&
                      calls_.cuStreamWriteValue32_v2 != nullptr &&
                      ask(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  if (const int mps = ask(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, -1); mps >= 0) out.mps = mps != 0;
  out.writes_ordering = ask(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  out.flush_options = ask(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  return out;
}

}  // namespace kvxfer::cuda
