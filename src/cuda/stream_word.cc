#include "src/cuda/stream_word.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/cuda/app_stream.h"
#include "src/cuda/pinned.h"

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

bool IsSet(uint32_t word, uint32_t value) { return static_cast<int32_t>(word - value) >= 0; }

class Pool {
 public:
  static constexpr size_t kBytes = StreamWord::kMost * sizeof(Word);

  // Never destroyed: the last transfers may end while static objects are destroyed.
  static Pool& Get() {
    static auto* const pool = new Pool;
    return *pool;
  }

  absl::StatusOr<StreamWord::Name> Take();
  void Set(StreamWord::Name name);
  Word& At(uint32_t index) { return words_[index]; }
  // True: GPUs can watch the words. False, with one warning: the words cannot be pinned.
  bool Pin(const Driver& driver, int device);

 private:
  Pool();
  bool InForkedChild() const { return process_ != getpid(); }

  const pid_t process_ = getpid();
  Word* words_ = nullptr;  // null: mmap failed
  int error_ = 0;          // the errno of that
  std::mutex mu_;          // guards free_
  std::deque<uint32_t> free_;
  std::mutex pin_mu_;  // guards all below; held during CUDA driver calls, which may take long
  std::optional<bool> pinned_;
  Pinned pin_;
};

// MAP_SHARED: after a fork, copy-on-write would give the parent another page than the one that the
// GPU has pinned.
Pool::Pool() {
  void* const data =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    error_ = errno;
    return;
  }
  words_ = static_cast<Word*>(data);
  for (uint32_t i = 0; i < StreamWord::kMost; ++i) {
    new (&words_[i]) Word(0);
    free_.push_back(i);
  }
}

absl::StatusOr<StreamWord::Name> Pool::Take() {
  if (InForkedChild()) {
    return absl::FailedPreconditionError(
        "CUDA streams were used in the parent process, and cannot be after a fork");
  }
  if (words_ == nullptr) {
    return absl::ResourceExhaustedError(
        ErrnoText(absl::StrCat("mmap of ", kBytes, " bytes that CUDA streams wait for"), error_));
  }
  std::lock_guard lock(mu_);
  if (free_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("CUDA streams of this process wait for ",
                                                     StreamWord::kMost,
                                                     " transfers; wait for some to end"));
  }
  // The word that was free for the longest time: its value wraps around last.
  const uint32_t index = free_.front();
  free_.pop_front();
  return StreamWord::Name{.index = index,
                          .value = words_[index].load(std::memory_order_relaxed) + 1};
}

void Pool::Set(StreamWord::Name name) {
  if (InForkedChild()) return;
  // Release: a stream, or AwaitWord, that sees the value sees the transfer's bytes too.
  words_[name.index].store(name.value, std::memory_order_release);
  words_[name.index].notify_all();
  std::lock_guard lock(mu_);
  free_.push_back(name.index);
}

bool Pool::Pin(const Driver& driver, int device) {
  std::lock_guard lock(pin_mu_);
  if (pinned_.has_value()) return *pinned_;
  auto pin = Pinned::Pin(&driver, device, words_, kBytes);
  pinned_ = pin.ok();
  if (pin.ok()) {
    pin_ = *std::move(pin);
  } else {
    Log(LogLevel::kWarning,
        "CUDA streams wait for transfers by threads of the driver, which takes longer: {}",
        std::string(pin.status().message()));
  }
  return *pinned_;
}

// Packs a word's name into the one pointer argument of a host function.
static_assert(sizeof(void*) >= sizeof(uint64_t));
void* Pack(StreamWord::Name name) {
  return reinterpret_cast<void*>(uint64_t{name.index} << 32 | name.value);
}
StreamWord::Name Unpack(void* packed) {
  const auto bits = reinterpret_cast<uint64_t>(packed);
  return {.index = static_cast<uint32_t>(bits >> 32), .value = static_cast<uint32_t>(bits)};
}

// Runs on a thread of the CUDA driver and must not call the CUDA driver. It ends, because every
// transfer does.
void AwaitWord(void* packed) {
  const StreamWord::Name name = Unpack(packed);
  Word& word = Pool::Get().At(name.index);
  for (uint32_t now = word.load(std::memory_order_acquire); !IsSet(now, name.value);
       now = word.load(std::memory_order_acquire)) {
    word.wait(now, std::memory_order_acquire);
  }
}

// Unimplemented: this GPU cannot wait by itself.
absl::Status WaitByGpu(const AppStream& stream, StreamWord::Name word) {
  absl::Status cannot = absl::UnimplementedError("");
  if (!stream.device().stream_values) return cannot;
  Pool& pool = Pool::Get();
  if (!pool.Pin(stream.driver(), stream.device().ordinal)) return cannot;
  const Calls& calls = stream.driver().calls();
  const auto at = reinterpret_cast<CUdeviceptr>(&pool.At(word.index));  // see Pinned
  const CUresult put =
      calls.cuStreamWaitValue32_v2(stream.handle(), at, word.value, CU_STREAM_WAIT_VALUE_GEQ);
  if (put == CUDA_ERROR_NOT_SUPPORTED) return cannot;
  return put == CUDA_SUCCESS ? absl::OkStatus() : stream.Error(put, "cuStreamWaitValue32");
}

}  // namespace

absl::StatusOr<StreamWord> StreamWord::Take() {
  const auto name = Pool::Get().Take();
  if (!name.ok()) return name.status();
  return StreamWord(*name);
}

StreamWord& StreamWord::operator=(StreamWord&& other) noexcept {
  if (this == &other) return *this;
  Set();
  name_ = std::exchange(other.name_, std::nullopt);
  return *this;
}

void StreamWord::Set() {
  if (name_.has_value()) Pool::Get().Set(*std::exchange(name_, std::nullopt));
}

absl::Status WaitInStream(const CudaStream& stream, StreamWord::Name word) {
  const AppStream open(stream);
  if (!open.status().ok()) return open.status();
  absl::Status status = WaitByGpu(open, word);
  if (!absl::IsUnimplemented(status)) return status;
  const CUresult put =
      open.driver().calls().cuLaunchHostFunc(open.handle(), &AwaitWord, Pack(word));
  return put == CUDA_SUCCESS ? absl::OkStatus() : open.Error(put, "cuLaunchHostFunc");
}

}  // namespace kvxfer::cuda
