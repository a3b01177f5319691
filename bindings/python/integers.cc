#include "bindings/python/integers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "bindings/python/status.h"
#include "bindings/python/tensor_view.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;
using Type = TensorView::Type;

bool IsArray(py::handle object) {
  return PyObject_CheckBuffer(object.ptr()) != 0 || py::hasattr(object, "__dlpack__") ||
         py::hasattr(object, "__cuda_array_interface__");
}

bool IsInteger(const TensorView& view) {
  return view.type == Type::kSigned || view.type == Type::kUnsigned;
}

[[noreturn]] void RefuseValue(const char* name, size_t at, const std::string& value) {
  Refuse(std::string(name) + "[" + std::to_string(at) + "] is " + value +
         "; expected an id from 0 to 4294967295");
}

template <typename T>
void Widen(const TensorView& view, const char* name, std::vector<uint32_t>& out) {
  const auto n = static_cast<size_t>(view.shape[0]);
  const auto* at = static_cast<const char*>(view.data);
  out.resize(n);
  for (size_t i = 0; i < n; ++i, at += view.strides[0]) {
    T value;
    std::memcpy(&value, at, sizeof(value));
    if (!std::in_range<uint32_t>(value)) RefuseValue(name, i, std::to_string(value));
    out[i] = static_cast<uint32_t>(static_cast<std::make_unsigned_t<T>>(value));
  }
}

}  // namespace

Ids::Ids(py::handle object, const char* name, Where where) {
  if (IsArray(object) && !PyBytes_Check(object.ptr())) {
    TakeArray(object, name, where);
  } else {
    TakeSequence(object, name);
  }
}

void Ids::TakeArray(py::handle object, const char* name, Where where) {
  const TensorView view = TensorView::Of(object, name, false);
  if (!IsInteger(view)) {
    throw py::type_error(std::string(name) + " is an array of " + view.TypeName() +
                         "; expected integers");
  }
  const bool on_gpu = view.kind == MemoryKind::kCuda;
  if (view.kind != MemoryKind::kHost && !(on_gpu && where == Where::kAnywhere)) {
    Refuse(std::string(name) + " is not in host memory");
  }
  if (view.shape.size() != 1) {
    Refuse(std::string(name) + " is " + view.Describe() + "; expected one dimension");
  }
  if (on_gpu) {
    if (view.item_bytes != 4 || (view.strides[0] != 4 && view.shape[0] > 1)) {
      Refuse(std::string(name) + " in GPU memory is " + view.Describe() +
             "; expected int32 or uint32 without gaps");
    }
    on_gpu_ = {.address = reinterpret_cast<uint64_t>(view.data),
               .count = static_cast<uint64_t>(view.shape[0])};
    return;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % alignof(uint32_t) == 0;
  if (view.item_bytes == 4 && aligned && (view.strides[0] == 4 || view.shape[0] <= 1)) {
    span_ = {static_cast<const uint32_t*>(view.data), static_cast<size_t>(view.shape[0])};
    hold_ = view.hold;
    if (view.type == Type::kUnsigned) return;
    const auto negative =
        std::ranges::find_if(span_, [](uint32_t id) { return static_cast<int32_t>(id) < 0; });
    if (negative == span_.end()) return;
    RefuseValue(name, static_cast<size_t>(negative - span_.begin()),
                std::to_string(static_cast<int32_t>(*negative)));
  }
  const bool is_signed = view.type == Type::kSigned;
  switch (view.item_bytes) {
    case 1:
      is_signed ? Widen<int8_t>(view, name, own_) : Widen<uint8_t>(view, name, own_);
      break;
    case 2:
      is_signed ? Widen<int16_t>(view, name, own_) : Widen<uint16_t>(view, name, own_);
      break;
    case 4:
      is_signed ? Widen<int32_t>(view, name, own_) : Widen<uint32_t>(view, name, own_);
      break;
    case 8:
      is_signed ? Widen<int64_t>(view, name, own_) : Widen<uint64_t>(view, name, own_);
      break;
    default:
      throw py::type_error(std::string(name) + " is an array of " + view.TypeName() +
                           "; expected integers");
  }
  span_ = own_;
}

void Ids::TakeSequence(py::handle object, const char* name) {
  // A copy: code of Python that an element may run could shorten the caller's.
  const auto list = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
  if (!list || PyBytes_Check(object.ptr()) || PyUnicode_Check(object.ptr())) {
    PyErr_Clear();
    throw py::type_error(std::string(name) + " is a " + Py_TYPE(object.ptr())->tp_name +
                         "; expected an array or a list of integers");
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(list.ptr());
  own_.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* const item = PyTuple_GET_ITEM(list.ptr(), i);
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(item));
    if (!index) {
      PyErr_Clear();
      throw py::type_error(std::string(name) + "[" + std::to_string(i) + "] is a " +
                           Py_TYPE(item)->tp_name + "; expected an integer");
    }
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < 0 || value > UINT32_MAX) {
      RefuseValue(name, static_cast<size_t>(i), py::repr(index).cast<std::string>());
    }
    own_.push_back(static_cast<uint32_t>(value));
  }
  span_ = own_;
}

uint64_t Rows::at(size_t row, size_t column) const {
  uint64_t value = 0;
  std::memcpy(
      &value,
      data + static_cast<int64_t>(row) * row_stride + static_cast<int64_t>(column) * column_stride,
      sizeof(value));
  return value;
}

Rows ToRows(py::handle object, const char* name, const char* expected) {
  const TensorView view = TensorView::Of(object, name, false);
  if (!IsInteger(view) || view.item_bytes != 8) {
    throw py::type_error(std::string(name) + " is an array of " + view.TypeName() + "; expected " +
                         expected);
  }
  if (view.kind != MemoryKind::kHost || view.shape.size() != 2) {
    Refuse(std::string(name) + " is " + view.Describe() + "; expected " + expected);
  }
  return {static_cast<const char*>(view.data),
          static_cast<size_t>(view.shape[0]),
          static_cast<size_t>(view.shape[1]),
          view.strides[0],
          view.strides[1],
          view.hold};
}

}  // namespace kvxfer::python
