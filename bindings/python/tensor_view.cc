#include "bindings/python/tensor_view.h"

#include <dlpack/dlpack.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "bindings/python/status.h"
#include "bindings/python/stream.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;
using Type = TensorView::Type;

constexpr int64_t kAnyStride = 1;

// Of an array without strides: that of a contiguous one.
std::vector<int64_t> DenseStrides(const std::vector<int64_t>& shape, uint64_t item_bytes) {
  std::vector<int64_t> strides(shape.size(), kAnyStride);
  auto stride = static_cast<int64_t>(item_bytes);
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Type TypeOfFormat(const char* format) {
  if (format == nullptr) return Type::kUnsigned;
  std::string_view text(format);
  if (!text.empty() && std::string_view("@=<").find(text.front()) != std::string_view::npos) {
    text.remove_prefix(1);
  }
  if (text.size() != 1) return Type::kOther;
  if (std::string_view("bhilqn").find(text.front()) != std::string_view::npos) return Type::kSigned;
  if (std::string_view("BHILQN").find(text.front()) != std::string_view::npos) {
    return Type::kUnsigned;
  }
  return std::string_view("efdg").find(text.front()) != std::string_view::npos ? Type::kFloat
                                                                               : Type::kOther;
}

TensorView FromBuffer(py::handle object, const char* name, bool writable) {
  const auto release = [](Py_buffer* buffer) {
    PyBuffer_Release(buffer);
    delete buffer;
  };
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_RECORDS_RO) != 0) {
    throw py::error_already_set();
  }
  const std::shared_ptr<Py_buffer> held(buffer.release(), release);
  if (writable && held->readonly != 0) {
    Refuse(std::string(name) +
           " is read-only; expected memory that may be written to (RawMemory takes any address)");
  }
  TensorView view;
  view.data = held->buf;
  view.type = TypeOfFormat(held->format);
  view.item_bytes = static_cast<uint64_t>(held->itemsize);
  view.shape.assign(held->shape, held->shape + held->ndim);
  if (held->strides != nullptr) {
    view.strides.assign(held->strides, held->strides + held->ndim);
  } else {
    view.strides = DenseStrides(view.shape, view.item_bytes);
  }
  view.hold = held;
  return view;
}

bool IsCuda(int64_t dlpack_type) { return dlpack_type == kDLCUDA || dlpack_type == kDLCUDAManaged; }

// Without a word torch would have its default stream wait for the current one; nothing here looks
// at the content. Of other devices torch refuses any such word.
py::object DlpackCapsule(py::handle object) {
  if (py::hasattr(object, "__dlpack_device__")) {
    const auto device = object.attr("__dlpack_device__")().cast<std::pair<int64_t, int64_t>>();
    if (IsCuda(device.first)) return object.attr("__dlpack__")(py::arg("stream") = -1);
  }
  return object.attr("__dlpack__")();
}

std::shared_ptr<void> Hold(py::handle object) {
  return {object.inc_ref().ptr(), [](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }};
}

// A tensor on a GPU by what torch calls its parts.
std::optional<TensorView> FromTorch(py::handle object) {
  for (const char* name : {"is_cuda", "requires_grad", "data_ptr", "shape", "stride"}) {
    if (!py::hasattr(object, name)) return std::nullopt;
  }
  if (!object.attr("is_cuda").cast<bool>() || object.attr("requires_grad").cast<bool>()) {
    return std::nullopt;
  }
  TensorView view;
  view.kind = MemoryKind::kCuda;
  view.device = std::max(0, DeviceSaid(object));
  view.data = reinterpret_cast<void*>(object.attr("data_ptr")().cast<uint64_t>());
  view.item_bytes = object.attr("element_size")().cast<uint64_t>();
  view.shape = object.attr("shape").cast<std::vector<int64_t>>();
  view.strides = object.attr("stride")().cast<std::vector<int64_t>>();
  for (int64_t& stride : view.strides) stride *= static_cast<int64_t>(view.item_bytes);
  view.hold = Hold(object);
  return view;
}

TensorView FromDlpack(py::handle object, const char* name) {
  py::object capsule;
  try {
    capsule = DlpackCapsule(object);
  } catch (const py::error_already_set& error) {
    // torch has none for memory of another device than the current one.
    if (!error.matches(PyExc_BufferError)) throw;
    auto view = FromTorch(object);
    if (!view.has_value()) throw;
    return *std::move(view);
  }
  auto* const tensor =
      static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  // Taken over: the capsule no longer frees it.
  if (PyCapsule_SetName(capsule.ptr(), "used_dltensor") != 0) throw py::error_already_set();
  TensorView view;
  view.hold = std::shared_ptr<void>(tensor, [](void* taken) {
    auto* const managed = static_cast<DLManagedTensor*>(taken);
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
  const DLTensor& lies = tensor->dl_tensor;
  switch (lies.device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      view.kind = MemoryKind::kHost;
      break;
    case kDLCUDA:
    case kDLCUDAManaged:
      view.kind = MemoryKind::kCuda;
      view.device = lies.device.device_id;
      break;
    default:
      Refuse(std::string(name) + " lies on a device of DLPack type " +
             std::to_string(static_cast<int>(lies.device.device_type)) +
             "; expected the CPU or CUDA");
  }
  view.data = static_cast<char*>(lies.data) + lies.byte_offset;
  view.item_bytes = (uint64_t{lies.dtype.bits} * lies.dtype.lanes + 7) / 8;
  view.type = lies.dtype.code == kDLInt                                     ? Type::kSigned
              : lies.dtype.code == kDLUInt                                  ? Type::kUnsigned
              : lies.dtype.code == kDLFloat || lies.dtype.code == kDLBfloat ? Type::kFloat
                                                                            : Type::kOther;
  view.shape.assign(lies.shape, lies.shape + lies.ndim);
  view.strides = DenseStrides(view.shape, view.item_bytes);
  if (lies.strides != nullptr) {
    for (size_t i = 0; i < view.strides.size(); ++i) {
      view.strides[i] = lies.strides[i] * static_cast<int64_t>(view.item_bytes);
    }
  }
  return view;
}

TensorView FromCudaArray(py::handle object, const char* name, bool writable) {
  const py::dict said = object.attr("__cuda_array_interface__");
  const auto pointer = said["data"].cast<std::pair<uint64_t, bool>>();
  if (writable && pointer.second) {
    Refuse(std::string(name) + " is read-only; expected memory that may be written to");
  }
  const auto typestr = said["typestr"].cast<std::string>();
  if (typestr.size() < 3) Refuse(std::string(name) + ": its typestr is \"" + typestr + "\"");
  TensorView view;
  view.kind = MemoryKind::kCuda;
  view.data = reinterpret_cast<void*>(pointer.first);
  uint64_t item_bytes = 0;
  const char* const digits = typestr.data() + 2;
  if (std::from_chars(digits, typestr.data() + typestr.size(), item_bytes).ec != std::errc()) {
    Refuse(std::string(name) + ": its typestr is \"" + typestr + "\"");
  }
  view.item_bytes = item_bytes;
  view.type = typestr[1] == 'i'   ? Type::kSigned
              : typestr[1] == 'u' ? Type::kUnsigned
              : typestr[1] == 'f' ? Type::kFloat
                                  : Type::kOther;
  view.shape = said["shape"].cast<std::vector<int64_t>>();
  view.strides = DenseStrides(view.shape, view.item_bytes);
  if (said.contains("strides") && !said["strides"].is_none()) {
    view.strides = said["strides"].cast<std::vector<int64_t>>();
  }
  if (view.strides.size() != view.shape.size()) {
    Refuse(std::string(name) + ": its strides are not as many as its dimensions");
  }
  // Its "stream" says when the content is ready, which is not looked at here.
  view.device = std::max(0, DeviceSaid(object));
  view.hold = Hold(object);
  return view;
}

std::string Join(const std::vector<int64_t>& values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + (values.size() == 1 ? ",)" : ")");
}

}  // namespace

TensorView TensorView::Of(py::handle object, const char* name, bool writable) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return FromBuffer(object, name, writable);
  if (py::hasattr(object, "__dlpack__")) return FromDlpack(object, name);
  if (py::hasattr(object, "__cuda_array_interface__")) {
    return FromCudaArray(object, name, writable);
  }
  throw py::type_error(std::string(name) + " is a " + Py_TYPE(object.ptr())->tp_name +
                       "; expected an object with the buffer protocol, __dlpack__ or "
                       "__cuda_array_interface__");
}

uint64_t TensorView::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), item_bytes,
                         [](uint64_t sum, int64_t n) { return sum * static_cast<uint64_t>(n); });
}

bool TensorView::IsDense() const {
  // From the innermost axis outwards each begins where the one before ends.
  std::vector<size_t> axes;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1) axes.push_back(i);
  }
  std::ranges::sort(axes, {}, [this](size_t axis) { return strides[axis]; });
  auto next = static_cast<int64_t>(item_bytes);
  for (const size_t axis : axes) {
    if (strides[axis] != next) return false;
    next *= shape[axis];
  }
  return true;
}

std::string TensorView::TypeName() const {
  const char* kind = type == Type::kSigned     ? "int"
                     : type == Type::kUnsigned ? "uint"
                     : type == Type::kFloat    ? "float"
                                               : "other";
  return kind + std::to_string(item_bytes * 8);
}

std::string TensorView::Describe() const {
  return TypeName() + " of shape " + Join(shape) + " and strides " + Join(strides) + " bytes";
}

uint64_t AddressNow(py::handle object, uint64_t known) {
  PyObject* const said = PyObject_CallMethod(object.ptr(), "data_ptr", nullptr);
  if (said == nullptr) {
    PyErr_Clear();
    return known;
  }
  const auto held = py::reinterpret_steal<py::object>(said);
  const uint64_t address = PyLong_Check(said) != 0 ? PyLong_AsUnsignedLongLong(said) : known;
  if (PyErr_Occurred() == nullptr) return address;
  PyErr_Clear();
  return known;
}

}  // namespace kvxfer::python
