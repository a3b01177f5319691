#include <algorithm>
#include <thread>

#include "src/cli/bench/report.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"
#include "src/cuda/copier.h"
#include "src/cuda/driver.h"

namespace kvxfer::cli {
namespace {

// Large enough that the start of a copy does not matter.
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;
constexpr uint64_t kMostBytes = uint64_t{512} << 20;
constexpr int kTurns = 5;
constexpr Duration kLongest = std::chrono::seconds(10);  // of one turn

// A CUDA stream of the device whose context is current; not the default stream.
class Stream {
 public:
  explicit Stream(const cuda::Driver& driver) : driver_(driver) {
    status_ = driver.Error(
        driver.calls().cuStreamCreateWithPriority(&stream_, cuda::api::CU_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority");
  }
  ~Stream() {
    if (status_.ok()) (void)driver_.calls().cuStreamDestroy_v2(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  const absl::Status& status() const { return status_; }
  cuda::api::CUstream get() const { return stream_; }

 private:
  const cuda::Driver& driver_;
  cuda::api::CUstream stream_ = nullptr;
  absl::Status status_;
};

// The best rate of kTurns turns after a first one that does not count. turn() copies `bytes` bytes
// and returns when that has ended.
template <typename Turn>
absl::StatusOr<double> BestRate(uint64_t bytes, const Turn& turn) {
  double best = 0;
  for (int i = 0; i <= kTurns; ++i) {
    const Time start = Now();
    if (absl::Status s = turn(); !s.ok()) return s;
    if (i > 0) best = std::max(best, GbPerSecond(bytes, Seconds(Now() - start)));
  }
  return best;
}

absl::StatusOr<double> WholeRate(const cuda::Driver& driver, int device, const GpuMemory& from,
                                 const GpuMemory& to, uint64_t bytes) {
  const cuda::ContextScope scope(driver, device);
  if (!scope.status().ok()) return scope.status();
  const Stream stream(driver);
  if (!stream.status().ok()) return stream.status();
  return BestRate(bytes, [&] {
    absl::Status status = driver.Error(
        driver.calls().cuMemcpyAsync(to.base(), from.base(), bytes, stream.get()), "cuMemcpyAsync");
    // Also after an error, because the memory is freed next.
    status.Update(
        driver.Error(driver.calls().cuStreamSynchronize(stream.get()), "cuStreamSynchronize"));
    return status;
  });
}

// Waits for the batch to end.
absl::Status AwaitBatch(cuda::Copier& copier) {
  for (const Time end = Now() + kLongest;; std::this_thread::yield()) {
    if (const std::optional<cuda::Copier::End> ended = copier.Poll()) return ended->status;
    if (Now() > end) return absl::DeadlineExceededError("a copy kernel does not end");
  }
}

absl::StatusOr<double> ScatteredRate(const cuda::Driver& driver, int device, cuda::Reach reach,
                                     const GpuMemory& from, const GpuMemory& to,
                                     uint64_t block_bytes, uint64_t blocks) {
  absl::StatusOr<std::unique_ptr<cuda::Copier>> copier = cuda::Copier::Create(&driver, device);
  if (!copier.ok()) return copier.status();
  const auto count = static_cast<uint32_t>(blocks);
  const std::vector<uint32_t> froms = Permutation(count, InitiatorSeed(1));
  const std::vector<uint32_t> tos = Permutation(count, TargetSeed(1));
  const cuda::PagedCopy copy{
      .to = {.base = to.base(), .stride = block_bytes, .ids = tos.data()},
      .from = {.base = from.base(), .stride = block_bytes, .ids = froms.data()},
      .count = count,
      .bytes = block_bytes};
  const cuda::CopyBatch batch{.paged = {&copy, 1}, .reach = reach};
  return BestRate(blocks * block_bytes, [&]() -> absl::Status {
    if (auto started = (*copier)->Start(batch); !started.ok()) return started.status();
    return AwaitBatch(**copier);
  });
}

}  // namespace

absl::StatusOr<DeviceCopyRates> MeasureDeviceCopy(const MemorySides& sides, uint64_t block_bytes,
                                                  uint64_t blocks) {
  DeviceCopyRates rates;
  if (!sides.here.cuda() && !sides.there.cuda()) return rates;
  const int source = sides.here.cuda() ? sides.here.device : sides.there.device;
  const int sink = sides.there.cuda() ? sides.there.device : source;
  const absl::StatusOr<const cuda::Driver*> driver = DriverFor(source);
  if (!driver.ok()) return driver.status();
  blocks = std::min<uint64_t>({blocks, cuda::Copier::kMaxBlocks, kMostBytes / block_bytes});
  const uint64_t bytes = std::max(kLeastBytes, blocks * block_bytes);
  absl::StatusOr<GpuMemory> from = GpuMemory::Allocate(source, bytes);
  absl::StatusOr<GpuMemory> to = GpuMemory::Allocate(sink, bytes);
  for (const absl::Status& status : {from.status(), to.status()}) {
    if (absl::IsResourceExhausted(status)) return rates;
    if (!status.ok()) return status;
  }
  const bool reached = source == sink || (*driver)->EnablePeerAccess(source, sink).ok();
  const absl::StatusOr<double> whole = WholeRate(**driver, source, *from, *to, bytes);
  if (!whole.ok()) return Annotate(OfThisHost(whole.status()), "the device's own copy");
  rates.whole = *whole;
  if (!reached || blocks == 0) return rates;
  const cuda::Reach reach = source == sink ? cuda::Reach::kOwn : cuda::Reach::kPeer;
  const auto scattered = ScatteredRate(**driver, source, reach, *from, *to, block_bytes, blocks);
  if (!scattered.ok()) {
    return Annotate(OfThisHost(scattered.status()), "the device's copy of blocks");
  }
  rates.scattered = *scattered;
  return rates;
}

}  // namespace kvxfer::cli
