#include "src/cuda/copier.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvxfer/memory.h"
#include "src/core/base/strings.h"
#include "src/cuda/copy_kernel.h"
#include "src/cuda/copy_launches.h"
#include "src/cuda/copy_rate.h"
#include "src/cuda/copy_units.h"
#include "src/cuda/pinned.h"
#include "src/cuda/unit_ring.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

// Two, so that a batch can begin while the previous one ends; one where copies are to leave
// multiprocessors to others.
constexpr size_t kStreams = 2;
// What a CUDA stream writes when a batch is over, alone in what a GPU reads and writes at a time.
using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);
constexpr size_t kWordBytes = 256;

// A waiting thread looks without rest from so long before the predicted end, and as long after it.
constexpr Duration kNear = std::chrono::microseconds(20);
// It sleeps as long as the batch has run, within these: a prediction may be wrong.
constexpr Duration kLeastSleep = std::chrono::microseconds(250);
constexpr Duration kMostSleep = std::chrono::milliseconds(1);
// Later it looks after an eighth of the time that the batch has taken, but not more often than:
constexpr Duration kLeastPause = std::chrono::microseconds(20);
constexpr Duration kMostPause = std::chrono::milliseconds(1);

class GpuCopier final : public Copier {
 public:
  GpuCopier(const Driver* driver, const Device& device, uint32_t most_sms)
      : driver_(*driver), device_(device), most_sms_(most_sms) {}
  ~GpuCopier() override;
  absl::Status Open();

  absl::StatusOr<uint64_t> Start(const CopyBatch& batch) override;
  std::optional<End> Poll() override;
  std::optional<Time> NextPoll() const override;
  uint64_t BatchBytes(Reach reach) const override { return rate_.BatchBytes(reach); }
  bool idle() const override { return running_.empty(); }
  bool broken() const override { return !broken_.ok(); }
  std::string Describe() const override {
    if (kernel_ == nullptr) {
      return absl::StrCat("driver copies, a call each (", why_no_kernel_, "), ", kStreams,
                          " streams");
    }
    if (most_sms_ == 0) return absl::StrCat("copy kernel, ", kStreams, " streams");
    return absl::StrCat("copy kernel on ", most_sms_, most_sms_ == 1 ? " SM" : " SMs",
                        ", 1 stream");
  }

 private:
  enum class EndMark : uint8_t { kWord, kEvent, kStream };  // what tells that a batch is over

  struct Batch {
    uint64_t number = 0;
    EndMark mark = EndMark::kStream;
    CUevent event = nullptr;  // of kEvent
    size_t stream = 0;        // index in streams_
    bool in_ring = false;
    bool may_refuse = false;  // ids are in GPU memory
    uint64_t bytes = 0;
    Reach reach = Reach::kOwn;
    Time began{};           // of the first one: since when it has the GPU for itself
    Time expected{};        // its end, likewise
    absl::Status failed{};  // not OK: a part of it was not begun
  };
  absl::Status PinList();
  absl::Status RunEmpty(const CopyKernel& kernel);
  // After an error `begun` says whether something moves all the same.
  absl::Status CopyByDriver(const CopyBatch& batch, CUstream stream, bool& begun);
  absl::Status CopyPiece(const Piece& piece, CUstream stream, bool& begun);

  Word& WordOf(size_t stream) {
    return *reinterpret_cast<Word*>(list_.data() + kRingUnits * sizeof(CopyUnit) +
                                    stream * kWordBytes);
  }
  // Becomes 1 if the GPU refuses a block of that batch.
  Word& RefusedOf(uint64_t batch) { return (&WordOf(kStreams))[batch % kMaxBatches]; }
  void MarkEnd(Batch& batch);
  absl::StatusOr<CUevent> TakeEvent();
  // NOT_READY: it runs. Another error: a fault.
  CUresult Look(const Batch& batch, Time now);
  // OK: everything that was under way has ended, and the context works.
  absl::Status WaitForAll();
  End Take(absl::Status status);
  void Lead(Batch& batch, Time now);

  const Driver& driver_;
  const Device& device_;
  const uint32_t most_sms_;  // 0: no limit
  std::array<CUstream, kStreams> streams_{};
  std::unique_ptr<CopyKernel> kernel_;
  std::optional<CopyLaunches> launches_;  // by the kernel; nothing: there is none
  std::string why_no_kernel_;
  HostBuffer list_;  // CopyUnit[kRingUnits], then WordOf each stream, then RefusedOf
  Pinned pinned_;
  UnitRing ring_{kRingUnits};
  bool words_ = false;  // the streams can write them
  std::vector<CUevent> events_;
  std::vector<Piece> pieces_;  // scratch space
  std::vector<Piece> joined_;  // scratch space
  std::deque<Batch> running_;
  Time looked_{};  // when the first of running_ was last seen to run
  // Nothing can be learnt from the first of running_: it may have ended when the one before it did.
  bool unknown_ = false;
  CopyRate rate_;
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
  launches_.emplace(kernel_.get(), reinterpret_cast<CopyUnit*>(list_.data()));
  return absl::OkStatus();
}

absl::Status GpuCopier::PinList() {
  auto list = HostBuffer::Allocate(kRingUnits * sizeof(CopyUnit) + (kStreams + 1) * kWordBytes,
                                   HostPages::kSmall);
  if (!list.ok()) return list.status();
  auto pinned = Pinned::Pin(&driver_, device_.ordinal, list->data(), list->size());
  if (!pinned.ok()) return pinned.status();
  list_ = *std::move(list);
  pinned_ = *std::move(pinned);
  for (size_t i = 0; i < kStreams; ++i) new (&WordOf(i)) Word(0);
  static_assert(kMaxBatches * sizeof(Word) <= kWordBytes);
  for (size_t i = 0; i < kMaxBatches; ++i) new (&RefusedOf(i)) Word(0);
  words_ = device_.stream_values;
  return absl::OkStatus();
}

// CUDA drivers load a kernel lazily at its first launch, which may wait for every CUDA stream of
// the context. So launch it here, where waiting is allowed.
absl::Status GpuCopier::RunEmpty(const CopyKernel& kernel) {
  CopyParams none;
  if (auto status = kernel.Launch(streams_[0], none, 1); !status.ok()) return status;
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

absl::Status GpuCopier::CopyByDriver(const CopyBatch& batch, CUstream stream, bool& begun) {
  pieces_.assign(batch.pieces.begin(), batch.pieces.end());
  for (const PagedCopy& copy : batch.paged) AddPieces(copy, pieces_);
  JoinPieces(pieces_, joined_);
  absl::Status status;
  for (size_t i = 0; status.ok() && i < joined_.size(); ++i) {
    status = CopyPiece(joined_[i], stream, begun);
  }
  return status;
}

absl::Status GpuCopier::CopyPiece(const Piece& piece, CUstream stream, bool& begun) {
  if (piece.bytes == 0) return absl::OkStatus();
  const CUresult result = driver_.calls().cuMemcpyAsync(piece.to, piece.from, piece.bytes, stream);
  begun |= result == CUDA_SUCCESS;
  return driver_.Error(result, "cuMemcpyAsync");
}

// The word, else an event, else the stream itself is queried, which reports the end only after
// everything that follows on it.
void GpuCopier::MarkEnd(Batch& batch) {
  const CUstream stream = streams_[batch.stream];
  if (words_) {
    const CUresult written = driver_.calls().cuStreamWriteValue32_v2(
        stream, reinterpret_cast<uint64_t>(&WordOf(batch.stream)),
        static_cast<uint32_t>(batch.number), CU_STREAM_WRITE_VALUE_DEFAULT);
    batch.mark = EndMark::kWord;
    if (written == CUDA_SUCCESS) return;
  }
  batch.mark = EndMark::kStream;
  const auto event = TakeEvent();
  if (!event.ok()) return;
  if (driver_.calls().cuEventRecord(*event, stream) == CUDA_SUCCESS) {
    batch.event = *event;
    batch.mark = EndMark::kEvent;
  } else {
    events_.push_back(*event);
  }
}

absl::StatusOr<uint64_t> GpuCopier::Start(const CopyBatch& batch) {
  if (!broken_.ok()) return broken_;
  const BatchSizes sizes = BatchSizes::Of(batch);
  if (batch.pieces.size() > kMaxPieces || sizes.blocks > kMaxBlocks ||
      sizes.paged_bytes > kMaxPagedBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        batch.pieces.size(), " pieces, ", sizes.blocks, " blocks of ", sizes.paged_bytes,
        " bytes in a batch of at most ", kMaxPieces, ", ", kMaxBlocks, " and ", kMaxPagedBytes));
  }
  if (sizes.on_device && kernel_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat("ids in GPU memory need the copy kernel (",
                                                 why_no_kernel_, "); bring them to the host"));
  }
  const ContextScope scope(driver_, device_.ordinal, ContextScope::For::kQueueing);
  if (!scope.status().ok()) return scope.status();

  CopyShape shape;
  size_t most = 0;
  std::optional<size_t> at;
  if (kernel_ != nullptr && sizes.bytes > 0) {
    const bool engine = batch.before.bytes > 0 || batch.after.bytes > 0;
    shape = ShapeOf(sizes.bytes, engine ? Reach::kOwn : batch.reach, device_.multiprocessors,
                    most_sms_);
    most = sizes.MostInRing(batch.pieces.size(), shape.unit_bytes);
    at = ring_.Find(most);
  }
  if (running_.size() >= kMaxBatches || (most > 0 && !at.has_value())) {
    return absl::ResourceExhaustedError("as many copies of the GPU are under way as may be");
  }
  Batch started{.number = last_ + 1,
                .stream = kernel_ != nullptr && most_sms_ > 0 ? 0 : (last_ + 1) % kStreams,
                .in_ring = at.has_value(),
                .may_refuse = sizes.on_device,
                .bytes = sizes.bytes,
                .reach = batch.reach};
  const CUstream stream = streams_[started.stream];
  if (started.may_refuse) RefusedOf(started.number).store(0, std::memory_order_relaxed);
  size_t end = at.value_or(0);
  bool begun = false;
  absl::Status status = CopyPiece(batch.before, stream, begun);
  if (status.ok() && sizes.bytes > 0) {
    const uint64_t refused =
        started.may_refuse ? reinterpret_cast<uint64_t>(&RefusedOf(started.number)) : 0;
    status = at.has_value() ? launches_->Launch(batch, shape, stream, refused, end, begun)
                            : CopyByDriver(batch, stream, begun);
  }
  if (status.ok()) status = CopyPiece(batch.after, stream, begun);
  // Nothing was begun, so the caller may take another path. Otherwise the batch must run until its
  // end.
  if (!status.ok() && !begun) return status;
  started.failed = std::move(status);
  MarkEnd(started);
  if (started.in_ring) ring_.Take(end - *at);
  started.began = Now();
  started.expected = started.began + rate_.Predict(sizes.bytes, batch.reach);
  if (running_.empty()) {
    looked_ = started.began;
    unknown_ = false;
  }
  running_.push_back(std::move(started));
  return ++last_;
}

// A fault never writes the word. So once the batch has taken twice the time that was predicted, the
// stream is asked too.
CUresult GpuCopier::Look(const Batch& batch, Time now) {
  if (batch.mark == EndMark::kWord) {
    const uint32_t word = WordOf(batch.stream).load(std::memory_order_acquire);
    if (static_cast<int32_t>(word - static_cast<uint32_t>(batch.number)) >= 0) return CUDA_SUCCESS;
    if (now < batch.expected + (batch.expected - batch.began)) return CUDA_ERROR_NOT_READY;
  }
  const ContextScope scope(driver_, device_.ordinal);
  if (!scope.status().ok()) {
    broken_ = scope.status();
    return CUDA_ERROR_UNKNOWN;
  }
  // May also report an error of earlier work in this context.
  return batch.mark == EndMark::kEvent ? driver_.calls().cuEventQuery(batch.event)
                                       : driver_.calls().cuStreamQuery(streams_[batch.stream]);
}

std::optional<Copier::End> GpuCopier::Poll() {
  if (running_.empty()) return std::nullopt;
  if (!broken_.ok()) return Take(broken_);
  const Batch& batch = running_.front();
  const Time now = Now();
  const CUresult result = Look(batch, now);
  if (!broken_.ok()) return Take(broken_);
  if (result == CUDA_ERROR_NOT_READY) {
    looked_ = now;
    unknown_ = false;
    return std::nullopt;
  }
  absl::Status status = driver_.Error(result, "a copy of the GPU");
  // Most such errors are sticky, and nothing runs afterwards. In any case, wait until nothing
  // moves.
  if (!status.ok()) {
    const ContextScope scope(driver_, device_.ordinal);
    if (!scope.status().ok() || !WaitForAll().ok()) broken_ = status;
  } else {
    if (!unknown_) {
      rate_.Learn(batch.bytes, batch.reach, looked_ - batch.began, now - batch.began);
    }
    status = batch.failed;
    if (batch.may_refuse && RefusedOf(batch.number).load(std::memory_order_relaxed) != 0) {
      status.Update(absl::InvalidArgumentError(
          "an id in GPU memory is beyond its paged region; blocks with such ids were not copied"));
    }
  }
  End end = Take(std::move(status));
  if (!running_.empty()) Lead(running_.front(), now);
  return end;
}

// `batch` is the first one now.
void GpuCopier::Lead(Batch& batch, Time now) {
  batch.began = std::max(batch.began, now);
  batch.expected = batch.began + rate_.Predict(batch.bytes, batch.reach);
  looked_ = batch.began;
  unknown_ = true;
}

// Ends the first batch.
Copier::End GpuCopier::Take(absl::Status status) {
  const Batch& batch = running_.front();
  End end{.batch = batch.number, .status = std::move(status)};
  if (batch.event != nullptr) events_.push_back(batch.event);
  if (batch.in_ring) ring_.Release();
  running_.pop_front();
  return end;
}

std::optional<Time> GpuCopier::NextPoll() const {
  if (running_.empty()) return std::nullopt;
  const Batch& batch = running_.front();
  if (!broken_.ok()) return Time{};
  const Duration ran = looked_ - batch.began;
  if (looked_ < batch.expected + kNear) {
    return std::min(batch.expected - kNear, looked_ + std::clamp(ran, kLeastSleep, kMostSleep));
  }
  return looked_ + std::clamp(ran / 8, kLeastPause, kMostPause);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Copier>> Copier::Create(const Driver* driver, int device,
                                                       uint32_t most_sms) {
  const auto known = driver->device(device);
  if (!known.ok()) return known.status();
  auto copier = std::make_unique<GpuCopier>(driver, **known, most_sms);
  if (auto status = copier->Open(); !status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", device, " cannot be used to copy: ", status.message()));
  }
  return copier;
}

}  // namespace kvxfer::cuda
