#include "src/cuda/memory.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

// Pointer queries need no current context. So a span with a wrong device_id does not create a
// context on that device.
template <typename Value>
CUresult Ask(const Driver& driver, uint64_t at, CUpointer_attribute attribute, Value& value) {
  return driver.calls().cuPointerGetAttribute(&value, attribute, at);
}

// Also false if the CUDA driver does not know the address or the attribute.
bool Holds(const Driver& driver, uint64_t at, CUpointer_attribute attribute) {
  int flag = 0;
  return Ask(driver, at, attribute, flag) == CUDA_SUCCESS && flag != 0;
}

std::string Range(uint64_t at, uint64_t bytes) {
  return absl::StrCat(bytes, " bytes at 0x", absl::Hex(at));
}
std::string Range(const MemorySpan& span) {
  return Range(reinterpret_cast<uint64_t>(span.data), span.bytes);
}

// The properties given to cuMemCreate; nothing: the memory is not from cuMemCreate. The query
// retains the handle, so it is released again.
std::optional<CUmemAllocationProp> VirtualProp(const Driver& driver, uint64_t at) {
  const Calls& calls = driver.calls();
  CUmemGenericAllocationHandle handle = 0;
  if (calls.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at)) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  CUmemAllocationProp prop{};
  if (calls.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS) prop = {};
  calls.cuMemRelease(handle);
  return prop;
}

// The address range that was allocated as one. For memory from cuMemCreate, cuMemGetAddressRange
// gives the piece that is mapped there, while the RANGE attributes give the whole reservation,
// mapped or not. For managed memory only the RANGE attributes work.
absl::Status FindRange(const Driver& driver, uint64_t at, Allocation& out) {
  CUdeviceptr start = 0;
  size_t size = 0;
  absl::Status status;
  if (out.kind == AllocationKind::kManaged) {
    status = driver.Error(Ask(driver, at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, start),
                          "cuPointerGetAttribute(RANGE_START_ADDR)");
    if (status.ok()) {
      status = driver.Error(Ask(driver, at, CU_POINTER_ATTRIBUTE_RANGE_SIZE, size),
                            "cuPointerGetAttribute(RANGE_SIZE)");
    }
  } else {
    status = driver.Error(driver.calls().cuMemGetAddressRange_v2(&start, &size, at),
                          "cuMemGetAddressRange");
  }
  if (!status.ok()) return status;
  if (at < start || at - start >= size) {
    return absl::InternalError(
        absl::StrCat("the driver says that 0x", absl::Hex(at), " lies in ", Range(start, size)));
  }
  out.allocation_base = start;
  out.allocation_bytes = size;
  return absl::OkStatus();
}

// Describes the allocation that contains `at`, which is device memory.
absl::StatusOr<Allocation> Describe(const Driver& driver, uint64_t at) {
  Allocation out;
  CUmemoryPool pool = nullptr;
  if (Holds(driver, at, CU_POINTER_ATTRIBUTE_IS_MANAGED)) {
    out.kind = AllocationKind::kManaged;
  } else if (Ask(driver, at, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pool) == CUDA_SUCCESS &&
             pool != nullptr) {
    out.kind = AllocationKind::kPool;
  } else if (const auto prop = VirtualProp(driver, at); prop.has_value()) {
    out.kind = AllocationKind::kVirtual;
    out.fd_handle = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    out.fabric_handle = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  }
  absl::Status status = FindRange(driver, at, out);
  if (!status.ok()) return status;
  status = driver.Error(Ask(driver, at, CU_POINTER_ATTRIBUTE_BUFFER_ID, out.buffer_id),
                        "cuPointerGetAttribute(BUFFER_ID)");
  if (!status.ok()) return status;
  out.gpu_direct = Holds(driver, at, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
  return out;
}

// OK: `span` begins in memory of the device that it names.
absl::Status CheckBegin(const Driver& driver, const MemorySpan& span) {
  const auto at = reinterpret_cast<uint64_t>(span.data);
  unsigned type = 0;
  const CUresult known = Ask(driver, at, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, type);
  if (known == CUDA_ERROR_INVALID_VALUE) {
    return absl::InvalidArgumentError(absl::StrCat(
        Range(span),
        " are called CUDA memory and are host memory, or GPU memory that was freed or never was; "
        "register host memory as host memory (MemoryKind::kHost), and GPU memory while it lives"));
  }
  if (known != CUDA_SUCCESS) {
    return Annotate(driver.Error(known, "cuPointerGetAttribute(MEMORY_TYPE)"), Range(span));
  }
  // Managed memory migrates to whichever device, or host, touches it, so its device does not
  // matter.
  if (Holds(driver, at, CU_POINTER_ATTRIBUTE_IS_MANAGED)) return absl::OkStatus();
  if (type != CU_MEMORYTYPE_DEVICE) {
    return absl::InvalidArgumentError(absl::StrCat(
        Range(span),
        " are called CUDA memory and are pinned host memory; register host memory as host memory "
        "(MemoryKind::kHost): it is pinned all the same"));
  }
  int device = 0;
  if (auto status = driver.Error(Ask(driver, at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device),
                                 "cuPointerGetAttribute(DEVICE_ORDINAL)");
      !status.ok()) {
    return status;
  }
  if (device == span.device_id) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Range(span), " are memory of GPU ", device,
                                                 ", not of GPU ", span.device_id,
                                                 " as device_id says"));
}

absl::Status CheckShape(const MemorySpan& span) {
  const auto at = reinterpret_cast<uint64_t>(span.data);
  if (at != 0 && span.bytes > 0 && at + span.bytes > at) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Range(span), " are no CUDA memory: an empty span, or one without an address"));
}

// Whether a region may cover both allocations, of which the second begins where the first ends.
// Only memory that is mapped piece by piece belongs together; other allocations are neighbours by
// chance.
bool BelongTogether(const Allocation& first, const Allocation& second) {
  return first.kind == AllocationKind::kVirtual && second.kind == AllocationKind::kVirtual;
}

absl::Status RunsOver(const MemorySpan& span, uint64_t at, std::string_view into) {
  return absl::InvalidArgumentError(absl::StrCat(
      Range(span), " run over the end of their allocation at 0x", absl::Hex(at), ToAbsl(into),
      "; register each allocation by itself (one region holds one, or pieces of cuMemCreate that "
      "are mapped side by side)"));
}

}  // namespace

std::string_view ToString(AllocationKind kind) {
  switch (kind) {
    case AllocationKind::kDevice:
      return "device memory";
    case AllocationKind::kVirtual:
      return "virtual memory (cuMemCreate)";
    case AllocationKind::kPool:
      return "memory of a pool (cuMemAllocAsync)";
    case AllocationKind::kManaged:
      return "managed memory";
  }
  return "memory";
}

absl::StatusOr<DeviceSpan> Examine(const MemorySpan& span) {
  if (auto status = CheckShape(span); !status.ok()) return status;
  const auto loaded = Driver::Get();
  if (!loaded.ok()) return Annotate(loaded.status(), "registering GPU memory");
  const Driver& driver = **loaded;
  if (auto known = driver.device(span.device_id); !known.ok()) return known.status();
  if (auto status = CheckBegin(driver, span); !status.ok()) return status;
  const ContextScope scope(driver, span.device_id);
  if (!scope.status().ok()) return scope.status();
  DeviceSpan out{
      .base = reinterpret_cast<uint64_t>(span.data), .bytes = span.bytes, .device = span.device_id};
  const uint64_t end = out.base + out.bytes;
  // One step for each allocation that the span covers.
  for (uint64_t at = out.base; at < end;) {
    auto part = Describe(driver, at);
    if (!out.parts.empty()) {
      if (!part.ok()) return RunsOver(span, at, "");
      if (!BelongTogether(out.parts.back(), *part)) {
        return RunsOver(span, at, " into an unrelated one");
      }
      int device = -1;
      Ask(driver, at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device);
      if (device != span.device_id) {
        return RunsOver(span, at, absl::StrCat(" into memory of GPU ", device));
      }
    }
    if (!part.ok()) return Annotate(part.status(), Range(span));
    part->base = at;
    part->bytes = std::min(end, part->allocation_base + part->allocation_bytes) - at;
    at += part->bytes;
    out.parts.push_back(*part);
  }
  return out;
}

absl::Status CheckHostSpan(const MemorySpan& span) {
  const Driver* const driver = Driver::IfInUse();
  if (driver == nullptr || span.bytes == 0) return absl::OkStatus();
  const auto first = reinterpret_cast<uint64_t>(span.data);
  for (const uint64_t at : {first, first + span.bytes - 1}) {
    unsigned type = 0;
    // Memory that the CUDA driver does not know is host memory.
    if (Ask(*driver, at, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, type) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE || Holds(*driver, at, CU_POINTER_ATTRIBUTE_IS_MANAGED)) {
      continue;
    }
    int device = 0;
    Ask(*driver, at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device);
    return absl::InvalidArgumentError(
        absl::StrCat(Range(span), " are called host memory and are memory of GPU ", device,
                     "; register them as such (MemoryKind::kCuda, device_id ", device, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckAlive(const Driver& driver, const DeviceSpan& span) {
  for (const Allocation& part : span.parts) {
    uint64_t id = 0;
    const CUresult asked = Ask(driver, part.base, CU_POINTER_ATTRIBUTE_BUFFER_ID, id);
    // Of memory that is not there the driver says that the value is invalid.
    if (asked != CUDA_SUCCESS && asked != CUDA_ERROR_INVALID_VALUE) {
      return driver.Error(asked, "cuPointerGetAttribute(BUFFER_ID)");
    }
    // Memory that is reserved but not mapped may have an id too.
    if (asked == CUDA_SUCCESS && id == part.buffer_id &&
        (part.kind != AllocationKind::kVirtual ||
         Holds(driver, part.base, CU_POINTER_ATTRIBUTE_MAPPED))) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        Range(part.base, part.bytes), " of GPU ", span.device,
        " were freed while they were registered; deregister memory before freeing it"));
  }
  return absl::OkStatus();
}

absl::Status SetSyncMemops(const Driver& driver, const DeviceSpan& span) {
  const ContextScope scope(driver, span.device);
  if (!scope.status().ok()) return scope.status();
  for (const Allocation& part : span.parts) {
    // Other kinds of memory do not have this attribute.
    if (part.kind != AllocationKind::kDevice) continue;
    const unsigned on = 1;
    const CUresult result =
        driver.calls().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, part.base);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED) continue;
    return driver.Error(result, "cuPointerSetAttribute(SYNC_MEMOPS)");
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cuda
