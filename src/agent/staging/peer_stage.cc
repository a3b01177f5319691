#include "src/agent/staging/peer_stage.h"

#include <atomic>
#include <system_error>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"
#include "src/cuda/closer.h"
#include "src/cuda/driver.h"
#include "src/cuda/pinned.h"

namespace kvxfer {

struct PeerStage::Memory {
  explicit Memory(MappedRegion peers) : region(std::move(peers)) {}

  const MappedRegion region;
  cuda::Pinned pinned{};  // before `region` is unmapped it is unpinned
  std::atomic<bool> open{false};
};

namespace {

absl::StatusOr<cuda::Pinned> Pin(const MappedRegion& region, uint64_t bytes, int device) {
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  return cuda::Pinned::Pin(*driver, device, region.data, bytes);
}

void LogFailure(std::string_view why) {
  Log(LogLevel::kWarning,
      "staging memory of a peer on this host cannot be pinned, so the CPU copies what is staged "
      "between the two: {}",
      why);
}

}  // namespace

bool PeerStage::Suits(int device) {
  const cuda::Driver* const driver = cuda::Driver::IfInUse();
  if (driver == nullptr) return false;
  const auto gpu = driver->device(device);
  return gpu.ok() && !(*gpu)->mps.value_or(false);
}

PeerStage::PeerStage(MappedRegion region, uint64_t bytes, int device)
    : memory_(std::make_shared<Memory>(std::move(region))) {
  try {
    StartThread("kvxfer-pin", [memory = memory_, bytes, device] {
      absl::StatusOr<cuda::Pinned> pinned = Pin(memory->region, bytes, device);
      if (!pinned.ok()) return LogFailure(ToStd(pinned.status().message()));
      memory->pinned = *std::move(pinned);
      memory->open.store(true, std::memory_order_release);
    }).detach();
  } catch (const std::system_error& error) {
    LogFailure(error.what());
  }
}

PeerStage::~PeerStage() {
  cuda::CloseLater([memory = std::move(memory_)] {});
}

bool PeerStage::open() const { return memory_->open.load(std::memory_order_acquire); }

std::byte* PeerStage::At(uint64_t offset) const { return memory_->region.data + offset; }

}  // namespace kvxfer
