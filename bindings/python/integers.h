// Arrays of integers as Python has them, read as they are: no object of Python an element, where
// the argument is an array.
//
// Thread-safety: with the GIL; what they hold may be read without it.

#ifndef KVXFER_BINDINGS_PYTHON_INTEGERS_H_
#define KVXFER_BINDINGS_PYTHON_INTEGERS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvxfer/memory.h"

namespace kvxfer::python {

// Block ids. Those of a contiguous array of uint32 or int32 stay where they are, in GPU memory too.
class Ids {
 public:
  enum class Where : uint8_t { kHost, kAnywhere };

  // One-dimensional. TypeError: not integers; InvalidArgument names the first that is negative or
  // too large, and the shape that is none of a list, or says that they are not in memory of
  // `where`.
  Ids(pybind11::handle object, const char* name, Where where = Where::kHost);

  // Those on the host.
  std::span<const uint32_t> span() const { return span_; }
  // Those in GPU memory, which the caller keeps alive; none: they are on the host.
  const DeviceIds& on_gpu() const { return on_gpu_; }

 private:
  void TakeArray(pybind11::handle object, const char* name, Where where);
  void TakeSequence(pybind11::handle object, const char* name);

  std::shared_ptr<void> hold_{};
  std::vector<uint32_t> own_{};
  std::span<const uint32_t> span_{};
  DeviceIds on_gpu_{};
};

// A matrix of 64-bit integers by rows, wherever it lies.
struct Rows {
  const char* data = nullptr;
  size_t count = 0;
  size_t columns = 0;
  int64_t row_stride = 0;     // bytes
  int64_t column_stride = 0;  // bytes
  std::shared_ptr<void> hold{};

  uint64_t at(size_t row, size_t column) const;
};

// InvalidArgument, or TypeError for another dtype than (u)int64: `expected` says what it should be.
Rows ToRows(pybind11::handle object, const char* name, const char* expected);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_INTEGERS_H_
