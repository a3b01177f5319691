#include "tests/support/memory_view.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include "src/cuda/driver.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names

std::mutex copied_mutex;
std::map<uint64_t, uint64_t> copied;  // begin → end; guarded by copied_mutex
// So that tests of host memory, which look often, take no lock.
std::atomic<size_t> copied_count{0};

uint64_t AddressOf(const std::byte* at) { return reinterpret_cast<uint64_t>(at); }

// A test that cannot look at its memory shows nothing, and a child process has no other way to
// fail.
void Check(const cuda::Driver& driver, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "the test's own copy: %s\n", driver.Error(result, call).ToString().c_str());
  std::abort();
}

// In a CUDA stream of the tests' own: a plain copy would use the legacy default stream, and so be
// ordered with streams that kvxfer may wrongly wait for.
void Copy(uint64_t to, uint64_t from, size_t bytes) {
  if (bytes == 0) return;
  const cuda::Driver& driver = *cuda::Driver::Get().value();
  const Calls& calls = driver.calls();
  const cuda::ContextScope scope(driver, 0);
  static const CUstream own = [&] {
    CUstream made = nullptr;
    Check(driver, calls.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0),
          "cuStreamCreateWithPriority");
    return made;
  }();
  Check(driver, calls.cuMemcpyAsync(to, from, bytes, own), "cuMemcpyAsync");
  Check(driver, calls.cuStreamSynchronize(own), "cuStreamSynchronize");
}

}  // namespace

void AddCopiedMemory(uint64_t at, uint64_t bytes) {
  const std::lock_guard lock(copied_mutex);
  copied[at] = at + bytes;
  copied_count = copied.size();
}

void ForgetCopiedMemory(uint64_t at) {
  const std::lock_guard lock(copied_mutex);
  copied.erase(at);
  copied_count = copied.size();
}

bool IsCopiedMemory(uint64_t address) {
  if (copied_count == 0) return false;
  const std::lock_guard lock(copied_mutex);
  const auto behind = copied.upper_bound(address);
  return behind != copied.begin() && address < std::prev(behind)->second;
}

ReadView::ReadView(std::span<const std::byte> memory) : bytes_(memory) {
  if (!IsCopiedMemory(AddressOf(memory.data()))) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(memory.size());
  Copy(AddressOf(copy_.get()), AddressOf(memory.data()), memory.size());
  bytes_ = {copy_.get(), memory.size()};
}

WriteView::WriteView(std::span<std::byte> memory) : memory_(memory), bytes_(memory) {
  if (!IsCopiedMemory(AddressOf(memory.data()))) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(memory.size());
  bytes_ = {copy_.get(), memory.size()};
}

WriteView::~WriteView() {
  if (copy_ != nullptr) Copy(AddressOf(memory_.data()), AddressOf(copy_.get()), memory_.size());
}

}  // namespace kvxfer::testing
