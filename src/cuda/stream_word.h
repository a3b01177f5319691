// Words of pinned memory that streams of the application wait for: by stream memory operations, so
// that the GPU itself looks, or where it cannot by a thread of the driver, which sleeps until then.
//
// A word may be used again as soon as it is set. Its value only rises, and a stream that waits for
// an older value finds it passed (a cyclic comparison); so nothing has to be known of the streams.
//
// The words are one small pool of the process, which is pinned at the first use and for good.
// Thread-safety: everything from any thread. In a forked child those of the parent are left alone.

#ifndef KVXFER_CUDA_STREAM_WORD_H_
#define KVXFER_CUDA_STREAM_WORD_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::cuda {

// One word, until this is destroyed: that sets it.
class StreamWord {
 public:
  // Most at a time, in a process.
  static constexpr uint32_t kMost = 16384;
  // Names one use of one word, also when it is over.
  struct Name {
    uint32_t index = 0;
    uint32_t value = 0;
  };

  // ResourceExhausted: kMost are in use. FailedPrecondition: in a forked child.
  static absl::StatusOr<StreamWord> Take();
  StreamWord(StreamWord&& other) noexcept : name_(std::exchange(other.name_, std::nullopt)) {}
  StreamWord& operator=(StreamWord&& other) noexcept;
  ~StreamWord() { Set(); }

  Name name() const { return *name_; }

 private:
  explicit StreamWord(Name name) : name_(name) {}
  void Set();
  std::optional<Name> name_;  // none: moved from
};

// What is put into `stream` from now on begins once the word is set. Returns at once. Errors as
// AppStream.
absl::Status WaitInStream(const CudaStream& stream, StreamWord::Name word);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_STREAM_WORD_H_
