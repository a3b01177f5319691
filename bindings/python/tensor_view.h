// Memory that Python objects offer, by whichever protocol they have: the buffer protocol
// (bytearray, mmap, numpy), DLPack (torch, which need not be imported), or
// __cuda_array_interface__.
//
// Thread-safety: with the GIL, destructors too. A view keeps its object, and the memory, alive.

#ifndef KVXFER_BINDINGS_PYTHON_TENSOR_VIEW_H_
#define KVXFER_BINDINGS_PYTHON_TENSOR_VIEW_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/memory.h"

namespace kvxfer::python {

class TensorView {
 public:
  enum class Type : uint8_t { kSigned, kUnsigned, kFloat, kOther };

  // `name` is the argument, for errors. TypeError: no such protocol; InvalidArgument: memory that
  // may not be written to, where `writable`.
  static TensorView Of(pybind11::handle object, const char* name, bool writable);

  // Its memory is held until the last copy is gone.
  void* data = nullptr;
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;
  Type type = Type::kOther;
  uint64_t item_bytes = 1;
  std::vector<int64_t> shape{};
  std::vector<int64_t> strides{};  // in bytes

  uint64_t bytes() const;  // of all elements
  // From data on, for bytes(), without a gap: contiguous, or a permutation of what is.
  bool IsDense() const;
  std::string TypeName() const;  // "int32"
  std::string Describe() const;  // "int32 of shape (3, 4) and strides (16, 4)"
  // What holds the memory. Destroyed with the GIL.
  std::shared_ptr<void> hold{};
};

// The address that `object` says it has now (torch: data_ptr()), where it says so; else `known`. A
// tensor whose storage was let go of, or moved, says another one than when it was registered.
uint64_t AddressNow(pybind11::handle object, uint64_t known);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_TENSOR_VIEW_H_
