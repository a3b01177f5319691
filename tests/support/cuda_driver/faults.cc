#include "tests/support/cuda_driver/faults.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/errors.h"

namespace kvxfer::testing::cuda_driver {

std::optional<Function> FunctionNamed(std::string_view name) {
  for (size_t i = 0; i < kFunctions; ++i) {
    if (name == kCalls[i]) return static_cast<Function>(i);
  }
  return std::nullopt;
}

Faults::Faults(const std::string& text) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t first = part.find(':');
    const size_t second = first == std::string::npos ? first : part.find(':', first + 1);
    if (second == std::string::npos) Die("a fault is CALL:NTH:ERROR, not " + part);
    const std::string name = part.substr(0, first);
    int nth = -1;
    std::from_chars(part.data() + first + 1, part.data() + second, nth);
    const std::optional<CUresult> error = ErrorNamed(part.substr(second + 1));
    const std::optional<Function> function = FunctionNamed(name);
    if (nth < 0 || !error.has_value() || (!function.has_value() && name != "async")) {
      Die("no such call, number or error: " + part);
    }
    faults_.push_back({.function = function, .nth = nth, .error = *error});
  }
}

void Faults::Add(Function function, int nth, CUresult error) {
  faults_.push_back({.function = function, .nth = nth, .error = error});
}

void Faults::AddAsync(int nth, CUresult error) {
  faults_.push_back({.function = std::nullopt, .nth = nth, .error = error});
}

void Faults::Clear() { faults_.clear(); }

CUresult Faults::Take(std::optional<Function> function) {
  CUresult result = CUDA_SUCCESS;
  std::erase_if(faults_, [&](Fault& fault) {
    if (fault.function != function) return false;
    const bool every = fault.nth == 0;
    if (!every && --fault.nth > 0) return false;
    result = fault.error;
    return !every;
  });
  return result;
}

CUresult Faults::Count(Function function) {
  ++calls_[static_cast<size_t>(function)];
  return Take(function);
}

CUresult Faults::CountOperation() { return Take(std::nullopt); }

uint64_t Faults::all_calls() const {
  return std::accumulate(calls_.begin(), calls_.end(), uint64_t{0});
}

}  // namespace kvxfer::testing::cuda_driver
