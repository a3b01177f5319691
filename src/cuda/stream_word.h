// Words of pinned memory that CUDA streams of the application wait for. The GPU itself watches the
// word (stream memory operations). If it cannot, a thread of the CUDA driver sleeps until the word
// is set.
//
// A word can be reused as soon as it is set. Its value only rises, and a CUDA stream that waits for
// an older value finds it passed (a cyclic comparison). So nothing has to be known about the
// streams that wait.
//
// The words are a small pool of the process, pinned at the first use and never unpinned.
// Thread-safety: everything from any thread. A forked child leaves the parent's words alone.

#ifndef KVXFER_CUDA_STREAM_WORD_H_
#define KVXFER_CUDA_STREAM_WORD_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::cuda {

// One use of a word. Its destructor sets the word.
class StreamWord {
 public:
  // The most words in use at a time in a process.
  static constexpr uint32_t kMost = 16384;
  // Identifies one use of one word, also after it is over.
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
  std::optional<Name> name_;  // nothing: moved from
};

// Work that is put into `stream` from now on begins once the word is set. Returns at once. Errors
// as AppStream.
absl::Status WaitInStream(const CudaStream& stream, StreamWord::Name word);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_STREAM_WORD_H_
