// What a test reads and writes of its memory. A CPU touches host memory where it is, and so it does
// GPU memory that the stand-in driver shows to it (TestMemory). GPU memory of a real driver has to
// be copied. `bytes()` of a TestMemory are addresses that no CPU may touch then: whoever goes round
// the views crashes, and never looks at what was there before.
//
// Thread-safety: everything from any thread, each view by one.
#ifndef KVXFER_TESTS_SUPPORT_MEMORY_VIEW_H_
#define KVXFER_TESTS_SUPPORT_MEMORY_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvxfer::testing {

// From now on [at, at + bytes) of GPU 0 is copied; until that is forgotten, before it is freed.
void AddCopiedMemory(uint64_t at, uint64_t bytes);
void ForgetCopiedMemory(uint64_t at);
bool IsCopiedMemory(uint64_t address);

// What `memory` holds: the memory itself, or a copy made now.
class ReadView {
 public:
  explicit ReadView(std::span<const std::byte> memory);
  ReadView(const ReadView&) = delete;
  ReadView& operator=(const ReadView&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> copy_;
  std::span<const std::byte> bytes_;
};

// Where all of `memory` is written: the memory itself, or what is copied there by the destructor.
class WriteView {
 public:
  explicit WriteView(std::span<std::byte> memory);
  ~WriteView();
  WriteView(const WriteView&) = delete;
  WriteView& operator=(const WriteView&) = delete;

  std::span<std::byte> bytes() { return bytes_; }

 private:
  const std::span<std::byte> memory_;
  std::unique_ptr<std::byte[]> copy_;
  std::span<std::byte> bytes_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_MEMORY_VIEW_H_
