// Calls and operations that are to fail, and how often each call was made.
//
// Thread-safety: under the lock of the state.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_FAULTS_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_FAULTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/cuda/api.h"
#include "tests/support/cuda_driver/hooks.h"

namespace kvxfer::testing::cuda_driver {

enum class Function : uint8_t {
#define KVXFER_STANDIN_ENUMERATOR(name, parameters) name,
  KVXFER_CUDA_CALLS(KVXFER_STANDIN_ENUMERATOR) KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_STANDIN_ENUMERATOR)
#undef KVXFER_STANDIN_ENUMERATOR
};
inline constexpr size_t kFunctions = std::size(kCalls);

std::optional<Function> FunctionNamed(std::string_view name);

class Faults {
 public:
  // `text`: as Config::fail; ends the process where it is none.
  explicit Faults(const std::string& text);

  // `nth`: 1 for the next, 0 for every one.
  void Add(Function function, int nth, cuda::api::CUresult error);
  void AddAsync(int nth, cuda::api::CUresult error);
  void Clear();

  // Counts a call, and says what it is to fail with.
  cuda::api::CUresult Count(Function function);
  // Before a stream begins an operation.
  cuda::api::CUresult CountOperation();

  uint64_t calls(Function function) const { return calls_[static_cast<size_t>(function)]; }
  uint64_t all_calls() const;

 private:
  struct Fault {
    std::optional<Function> function{};  // none: an operation
    int nth = 0;                         // 0: every one
    cuda::api::CUresult error{};
  };
  cuda::api::CUresult Take(std::optional<Function> function);

  std::array<uint64_t, kFunctions> calls_{};
  std::vector<Fault> faults_{};
};

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_FAULTS_H_
