#include "src/backends/verbs/regions.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"

namespace kvxfer::verbs {
namespace {

// Pinning costs about 0.1 ms per MiB of small pages; starting a thread costs less than pinning this
// many bytes.
constexpr size_t kParallelBytes = 16 * 1024 * 1024;

int AccessFlags(Access access) {
  int flags = IBV_ACCESS_LOCAL_WRITE;
  if (Allows(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (Allows(access, Access::kRemoteWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  return flags;
}

}  // namespace

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  Close();
  holds_ = std::exchange(other.holds_, {});
  parts_ = std::move(other.parts_);
  driver_ = other.driver_;
  gpu_ = other.gpu_;
  why_missing_ = std::move(other.why_missing_);
  return *this;
}

void DeviceMemory::Close() {
  // Read before DeregMr frees `mr`.
  for (const Hold& hold : std::exchange(holds_, {})) {
    const size_t bytes = hold.mr->length;
    const int error = hold.device->ibv().DeregMr(hold.mr);
    if (error == 0) continue;
    Log(LogLevel::kError, "verbs: {}: a region of {} bytes stays reachable: {}",
        hold.device->name(), bytes, ErrnoText("ibv_dereg_mr", error));
  }
}

absl::Status DeviceMemory::Register(const MemorySpan& span, Access access,
                                    std::span<const std::unique_ptr<Device>> devices) {
  const int flags = AccessFlags(access);
  std::vector<std::pair<ibv_mr*, int>> made(devices.size());
  OfEach(devices.size(), span.bytes, [&](size_t i) {
    if (devices[i]->broken()) return;
    made[i].first = devices[i]->Register(span.data, span.bytes, flags);
    made[i].second = errno;
  });
  for (size_t i = 0; i < devices.size(); ++i) {
    if (made[i].first != nullptr) {
      holds_.push_back({devices[i].get(), made[i].first});
    } else if (devices[i]->broken()) {
      Miss(devices[i]->why_broken());
    } else {
      Miss(RegistrationError(devices[i]->name(), span, made[i].second));
    }
  }
  return holds_.empty() ? why_missing_ : absl::OkStatus();
}

absl::Status DeviceMemory::Register(const GpuMemory& memory, Access access,
                                    std::span<const std::unique_ptr<Device>> devices) {
  driver_ = memory.span.driver;
  gpu_ = memory.span.device;
  const int flags = AccessFlags(access);
  std::vector<absl::StatusOr<std::vector<ibv_mr*>>> made(devices.size());
  OfEach(devices.size(), memory.span.span.bytes, [&](size_t i) {
    made[i] = devices[i]->broken() ? devices[i]->why_broken()
                                   : RegisterGpuMemory(*devices[i], memory, flags);
  });
  size_t most = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!made[i].ok()) {
      Miss(made[i].status());
      continue;
    }
    most = std::max(most, made[i]->size());
    for (ibv_mr* const mr : *made[i]) holds_.push_back({devices[i].get(), mr});
  }
  if (holds_.empty()) return why_missing_;
  if (most == 1) return absl::OkStatus();
  const cuda::DeviceSpan& span = memory.span.span;
  std::vector<uint64_t> bytes;
  for (const cuda::Allocation& part : span.parts) bytes.push_back(part.bytes);
  parts_ = std::make_unique<const PartTable>(span.base, bytes);
  return CheckKeyBytes(*parts_, devices.size());
}

std::vector<DeviceMemory::Known> DeviceMemory::ByDevice() const {
  std::vector<Known> out;
  for (const Hold& hold : holds_) {
    if (out.empty() || out.back().device != hold.device) out.push_back({.device = hold.device});
    out.back().lkeys.push_back(hold.mr->lkey);
    out.back().rkeys.push_back(hold.mr->rkey);
  }
  for (Known& known : out) {
    // A device that has the whole as one uses the same key for each part.
    known.lkeys.resize(parts_->size(), known.lkeys.front());
    known.rkeys.resize(parts_->size(), known.rkeys.front());
  }
  return out;
}

void DeviceMemory::OfEach(size_t devices, size_t bytes, const std::function<void(size_t)>& one) {
  if (devices <= 1 || bytes < kParallelBytes) {
    for (size_t i = 0; i < devices; ++i) one(i);
    return;
  }
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < devices; ++i) {
    try {
      const SignalsBlocked inherited;
      threads.emplace_back([&one, i] {
        pthread_setname_np(pthread_self(), "kvxfer-verbs");
        one(i);
      });
      // The process has as many threads as it may have.
    } catch (const std::system_error&) {
      one(i);
    }
  }
}

void DeviceMemory::Miss(const absl::Status& why) {
  why_missing_ = why_missing_.ok()
                     ? why
                     : absl::Status(why_missing_.code(),
                                    absl::StrCat(why_missing_.message(), "; ", why.message()));
}

VerbsRegistration::VerbsRegistration(VerbsBackend* backend, const LocalRegion& region,
                                     DeviceMemory memory, const Penalties& penalties)
    : backend_(backend), span_(region.span), penalties_(penalties), memory_(std::move(memory)) {
  // The devices are the same to the end, and so is the key.
  key = MakeKey(region.rkey);
  for (const DeviceMemory::Hold& hold : memory_.holds()) {
    lkeys_[hold.device->ordinal()] = hold.mr->lkey;
    rkeys_[hold.device->ordinal()] = hold.mr->rkey;
    devices_ |= uint64_t{1} << hold.device->ordinal();
  }
  if (memory_.parts() == nullptr) return;
  parts_ = std::make_unique<PartKeys>(*memory_.parts());
  for (const DeviceMemory::Known& known : memory_.ByDevice()) {
    parts_->Add(known.device->ordinal(), known.lkeys);
  }
}

VerbsRegistration::~VerbsRegistration() {
  if (backend_ != nullptr) backend_->Forget(this);
}

std::string VerbsRegistration::What() const {
  return absl::StrCat("the region of ", span_.bytes, " bytes at 0x",
                      absl::Hex(reinterpret_cast<uintptr_t>(span_.data)));
}

void VerbsRegistration::Close() {
  memory_.Close();
  backend_ = nullptr;
}

}  // namespace kvxfer::verbs
