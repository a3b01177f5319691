#include "src/cuda/copier.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvxfer/memory.h"
#include "src/core/base/strings.h"
#include "src/cuda/copy_kernel.h"
#include "src/cuda/copy_units.h"
#include "src/cuda/pinned.h"
#include "src/cuda/unit_ring.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

// Two, so that a batch can begin while the previous one ends.
constexpr size_t kStreams = 2;
// The GPU copies the first pieces of a large batch while the list for the next launch is written.
constexpr size_t kPiecesPerLaunch = 4096;
constexpr size_t kLaunches = Copier::kMaxPieces / kPiecesPerLaunch;
// Has space for a largest batch beside another one of the same size.
constexpr size_t kRingUnits = 2 * (kMostUnits + kLaunches * UnitRing::kAlign);

class GpuCopier final : public Copier {
 public:
  GpuCopier(const Driver* driver, const Device& device) : driver_(*driver), device_(device) {}
  ~GpuCopier() override;
  absl::Status Open();

  absl::StatusOr<uint64_t> Start(std::span<const Piece> pieces) override;
  std::optional<End> Poll() override;
  bool idle() const override { return running_.empty(); }
  bool broken() const override { return !broken_.ok(); }
  std::string Describe() const override {
    return absl::StrCat(kernel_ != nullptr
                            ? "copy kernel"
                            : absl::StrCat("driver copies, a call each (", why_no_kernel_, ")"),
                        ", ", kStreams, " streams");
  }

 private:
  struct Batch {
    uint64_t number = 0;
    CUevent event = nullptr;  // null: not recorded; the whole stream is queried
    CUstream stream = nullptr;
    bool in_ring = false;
    absl::Status failed{};  // not OK: a part of it was not begun
  };

  absl::Status PinList();
  absl::Status RunEmpty(const CopyKernel& kernel);
  Reach ReachOf(const Piece& piece) const;
  // Both: after an error `begun` says whether something moves all the same. `at`: where the list
  // has space; afterwards its end.
  absl::Status Launch(std::span<const Piece> pieces, const CopyShape& shape, CUstream stream,
                      size_t& at, bool& begun);
  absl::Status CopyByDriver(std::span<const Piece> pieces, CUstream stream, bool& begun);
  void Record(Batch& batch);
  absl::StatusOr<CUevent> TakeEvent();
  // OK: everything that was under way has ended, and the context works.
  absl::Status WaitForAll();

  const Driver& driver_;
  const Device& device_;
  std::array<CUstream, kStreams> streams_{};
  std::unique_ptr<CopyKernel> kernel_;
  std::string why_no_kernel_;
  HostBuffer list_;  // CopyUnit[kRingUnits]
  Pinned pinned_;
  UnitRing ring_{kRingUnits};
  std::vector<CUevent> events_;
  std::vector<Piece> joined_;
  std::deque<Batch> running_;
  uint64_t last_ = 0;
  absl::Status broken_;  // not OK: the context is broken and nothing runs in it
};

absl::Status GpuCopier::Open() {
  const ContextScope scope(driver_, device_.ordinal);
  if (!scope.status().ok()) return scope.status();
  // The highest priority: CUDA streams of equal priority share hardware queues, and a CUDA stream
  // of the application that waits for a transfer would hold up that transfer's copies.
  int greatest = 0;
  const CUresult told = driver_.calls().cuCtxGetStreamPriorityRange(nullptr, &greatest);
  if (told != CUDA_SUCCESS) return driver_.Error(told, "cuCtxGetStreamPriorityRange");
  for (CUstream& stream : streams_) {
    const CUresult made =
        driver_.calls().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest);
    if (made != CUDA_SUCCESS) return driver_.Error(made, "cuStreamCreateWithPriority");
  }
  auto kernel = CopyKernel::Load(&driver_);
  if (!kernel.ok()) {
    why_no_kernel_ = ToStd(kernel.status().message());
    return absl::OkStatus();
  }
  if (auto status = PinList(); !status.ok()) {
    (*kernel)->Unload();
    return status;
  }
  if (auto status = RunEmpty(**kernel); !status.ok()) {
    (*kernel)->Unload();
    why_no_kernel_ = ToStd(status.message());
    return absl::OkStatus();
  }
  kernel_ = *std::move(kernel);
  return absl::OkStatus();
}

absl::Status GpuCopier::PinList() {
  auto list = HostBuffer::Allocate(kRingUnits * sizeof(CopyUnit), HostPages::kSmall);
  if (!list.ok()) return list.status();
  auto pinned = Pinned::Pin(&driver_, device_.ordinal, list->data(), list->size());
  if (!pinned.ok()) return pinned.status();
  list_ = *std::move(list);
  pinned_ = *std::move(pinned);
  return absl::OkStatus();
}

// CUDA drivers load a kernel lazily at its first launch, which may wait for every CUDA stream of
// the context. So launch it here, where waiting is allowed.
absl::Status GpuCopier::RunEmpty(const CopyKernel& kernel) {
  const CopyParams empty{.units = reinterpret_cast<uint64_t>(list_.data())};
  if (auto status = kernel.Launch(streams_[0], empty, 1); !status.ok()) return status;
  return driver_.Error(driver_.calls().cuStreamSynchronize(streams_[0]), "cuStreamSynchronize");
}

GpuCopier::~GpuCopier() {
  const ContextScope scope(driver_, device_.ordinal);
  if (!scope.status().ok()) return;  // the process was forked, or the CUDA driver is gone
  const Calls& calls = driver_.calls();
  WaitForAll().IgnoreError();
  for (const Batch& batch : running_) {
    if (batch.event != nullptr) calls.cuEventDestroy_v2(batch.event);
  }
  for (const CUevent event : events_) calls.cuEventDestroy_v2(event);
  for (const CUstream stream : streams_) {
    if (stream != nullptr) calls.cuStreamDestroy_v2(stream);
  }
  if (kernel_ != nullptr) kernel_->Unload();
}

absl::Status GpuCopier::WaitForAll() {
  absl::Status status;
  for (const CUstream stream : streams_) {
    if (stream == nullptr) continue;
    status.Update(
        driver_.Error(driver_.calls().cuStreamSynchronize(stream), "cuStreamSynchronize"));
  }
  return status;
}

absl::StatusOr<CUevent> GpuCopier::TakeEvent() {
  CUevent event = nullptr;
  if (events_.empty()) {
    const CUresult made = driver_.calls().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (made != CUDA_SUCCESS) return driver_.Error(made, "cuEventCreate");
    return event;
  }
  event = events_.back();
  events_.pop_back();
  return event;
}

// How far the copy reaches. Memory that the CUDA driver does not know can only be host memory.
Reach GpuCopier::ReachOf(const Piece& piece) const {
  Reach reach = Reach::kOwn;
  for (const uint64_t at : {piece.to, piece.from}) {
    unsigned type = 0;
    int device = 0;
    const Calls& calls = driver_.calls();
    if (calls.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE) {
      return Reach::kHost;
    }
    if (calls.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) ==
            CUDA_SUCCESS &&
        device != device_.ordinal) {
      reach = Reach::kPeer;
    }
  }
  return reach;
}

absl::Status GpuCopier::Launch(std::span<const Piece> pieces, const CopyShape& shape,
                               CUstream stream, size_t& at, bool& begun) {
  auto* const list = reinterpret_cast<CopyUnit*>(list_.data());
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(kPiecesPerLaunch, pieces.size()));
    pieces = pieces.subspan(some.size());
    const size_t units = MakeUnits(some, shape.unit_bytes, list + at);
    if (units == 0) continue;
    const uint32_t per_group = shape.PerGroup(units);
    const CopyParams params{.units = reinterpret_cast<uint64_t>(list + at),
                            .count = static_cast<uint32_t>(units),
                            .per_group = per_group};
    // Each launch gets its own aligned part of the list (UnitRing::kAlign).
    at += UnitRing::Aligned(units);
    if (auto status = kernel_->Launch(stream, params, shape.Blocks(units, per_group));
        !status.ok()) {
      return status;
    }
    begun = true;
  }
  return absl::OkStatus();
}

absl::Status GpuCopier::CopyByDriver(std::span<const Piece> pieces, CUstream stream, bool& begun) {
  JoinPieces(pieces, joined_);
  for (const Piece& piece : joined_) {
    const CUresult result =
        driver_.calls().cuMemcpyAsync(piece.to, piece.from, piece.bytes, stream);
    if (result != CUDA_SUCCESS) return driver_.Error(result, "cuMemcpyAsync");
    begun = true;
  }
  return absl::OkStatus();
}

// If the event cannot be recorded, the stream itself is queried. It reports the end only after
// everything that follows on it.
void GpuCopier::Record(Batch& batch) {
  if (driver_.calls().cuEventRecord(batch.event, batch.stream) == CUDA_SUCCESS) return;
  events_.push_back(std::exchange(batch.event, nullptr));
}

absl::StatusOr<uint64_t> GpuCopier::Start(std::span<const Piece> pieces) {
  if (!broken_.ok()) return broken_;
  if (pieces.size() > kMaxPieces) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pieces.size(), " pieces in a batch of at most ", kMaxPieces));
  }
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const ContextScope scope(driver_, device_.ordinal);
  if (!scope.status().ok()) return scope.status();

  CopyShape shape;
  size_t most = 0;
  std::optional<size_t> at;
  if (kernel_ != nullptr && bytes > 0) {
    shape = ShapeOf(bytes, ReachOf(pieces.front()), device_.multiprocessors);
    // An upper bound: the exact number is known once the units are written.
    most = MostUnits(pieces.size(), bytes, shape.unit_bytes) + kLaunches * UnitRing::kAlign;
    at = ring_.Find(most);
  }
  if (running_.size() >= kMaxBatches || (most > 0 && !at.has_value())) {
    return absl::ResourceExhaustedError("as many copies of the GPU are under way as may be");
  }
  auto event = TakeEvent();
  if (!event.ok()) return event.status();
  Batch batch{.number = last_ + 1,
              .event = *event,
              .stream = streams_[(last_ + 1) % kStreams],
              .in_ring = at.has_value()};
  size_t end = at.value_or(0);
  bool begun = false;
  absl::Status status;
  if (bytes > 0) {
    status = at.has_value() ? Launch(pieces, shape, batch.stream, end, begun)
                            : CopyByDriver(pieces, batch.stream, begun);
  }
  // Nothing was begun, so the caller may take another path. Otherwise the batch must run until its
  // end.
  if (!status.ok() && !begun) {
    events_.push_back(*event);
    return status;
  }
  batch.failed = std::move(status);
  Record(batch);
  if (batch.in_ring) ring_.Take(end - *at);
  running_.push_back(std::move(batch));
  return ++last_;
}

std::optional<Copier::End> GpuCopier::Poll() {
  if (running_.empty()) return std::nullopt;
  Batch& batch = running_.front();
  End end{.batch = batch.number, .status = broken_};
  if (broken_.ok()) {
    const ContextScope scope(driver_, device_.ordinal);
    CUresult result = CUDA_SUCCESS;
    // May also report an error of earlier work in this context.
    end.status = broken_ = scope.status();
    if (end.status.ok()) {
      result = batch.event != nullptr ? driver_.calls().cuEventQuery(batch.event)
                                      : driver_.calls().cuStreamQuery(batch.stream);
      if (result == CUDA_ERROR_NOT_READY) return std::nullopt;
      end.status = driver_.Error(result, "a copy of the GPU");
      // Most such errors are sticky, and nothing runs afterwards. In any case, wait until nothing
      // moves.
      if (!end.status.ok() && !WaitForAll().ok()) broken_ = end.status;
    }
    if (end.status.ok()) end.status = batch.failed;
  }
  if (batch.event != nullptr) events_.push_back(batch.event);
  if (batch.in_ring) ring_.Release();
  running_.pop_front();
  return end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Copier>> Copier::Create(const Driver* driver, int device) {
  const auto known = driver->device(device);
  if (!known.ok()) return known.status();
  auto copier = std::make_unique<GpuCopier>(driver, **known);
  if (auto status = copier->Open(); !status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", device, " cannot be used to copy: ", status.message()));
  }
  return copier;
}

}  // namespace kvxfer::cuda
