#include "bindings/python/stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bindings/python/status.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

constexpr uint64_t kLegacy = 1;
constexpr uint64_t kPerThread = 2;

// Null: there is no such attribute. Other errors of asking for it are thrown.
py::object Attribute(py::handle object, const char* name) {
  PyObject* const found = PyObject_GetAttrString(object.ptr(), name);
  if (found != nullptr) return py::reinterpret_steal<py::object>(found);
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return {};
}

std::string TypeOf(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

bool IsInteger(py::handle object) {
  return PyIndex_Check(object.ptr()) != 0 && PyBool_Check(object.ptr()) == 0;
}

// A handle of CUDA is an address, or one of a few small numbers.
uint64_t ToHandle(py::handle number, const std::string& name) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(number.ptr()));
  if (!index) throw py::error_already_set();
  const uint64_t handle = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() == nullptr) return handle;
  PyErr_Clear();
  Refuse(absl::StrCat(name, " is ", std::string(py::str(index)),
                      "; expected a handle of CUDA, from 1 to 2**64 - 1"));
}

// What __cuda_stream__ says: (version, handle), of whatever version: later ones begin the same.
py::object HandleOfProtocol(py::handle said, const std::string& name) {
  // A method; a property where cuda.core was young.
  const auto pair =
      PyCallable_Check(said.ptr()) != 0 ? said() : py::reinterpret_borrow<py::object>(said);
  if (PyTuple_Check(pair.ptr()) != 0 && PyTuple_GET_SIZE(pair.ptr()) >= 2) {
    auto handle = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(pair.ptr(), 1));
    if (IsInteger(handle)) return handle;
  }
  throw py::type_error(absl::StrCat(name, ": __cuda_stream__ gives ", std::string(py::repr(pair)),
                                    "; expected (version, handle)"));
}

CudaStream StreamOfObject(py::handle object, py::handle number, const std::string& name) {
  CudaStream stream{.handle = ToHandle(number, name)};
  if (stream.handle == 0) stream.handle = kLegacy;
  // All others say by themselves of which device they are.
  if (stream.handle <= kPerThread) stream.device = DeviceSaid(object);
  return stream;
}

py::object NumberOf(py::handle object, const char* attribute, const char* name) {
  auto number = Attribute(object, attribute);
  if (number && !IsInteger(number)) {
    throw py::type_error(
        absl::StrCat(name, ".", attribute, " is a ", TypeOf(number), "; expected an integer"));
  }
  return number;
}

uint64_t ToEvent(py::handle event) {
  if (IsInteger(event)) {
    const uint64_t handle = ToHandle(event, "event");
    if (handle == 0) Refuse("event is 0, which is none; expected a cudaEvent_t, or None");
    return handle;
  }
  const auto number = NumberOf(event, "cuda_event", "event");
  if (!number) {
    throw py::type_error(absl::StrCat("event is a ", TypeOf(event),
                                      "; expected a cudaEvent_t as an int, an object with "
                                      "cuda_event (torch.cuda.Event), or None"));
  }
  const uint64_t handle = ToHandle(number, "event.cuda_event");
  // torch makes one with the first record().
  if (handle == 0) Refuse("event.cuda_event is 0; expected an event that was recorded before");
  return handle;
}

}  // namespace

std::optional<CudaStream> ToStream(py::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  if (IsInteger(object)) {
    const uint64_t handle = ToHandle(object, name);
    if (handle != 0) return CudaStream{.handle = handle};
    Refuse(absl::StrCat(name,
                        " is 0, which could be either default stream; expected 1 for the "
                        "legacy one, 2 for that of the calling thread, or a cudaStream_t"));
  }
  if (const auto said = Attribute(object, "__cuda_stream__")) {
    return StreamOfObject(object, HandleOfProtocol(said, name), name);
  }
  if (const auto number = NumberOf(object, "cuda_stream", name)) {
    return StreamOfObject(object, number, name);
  }
  throw py::type_error(
      absl::StrCat(name, " is a ", TypeOf(object),
                   "; expected a cudaStream_t as an int, an object with __cuda_stream__ or "
                   "cuda_stream (torch.cuda.Stream), or None"));
}

StreamOrder ToStreamOrder(py::handle stream, py::handle event) {
  StreamOrder order{.stream = ToStream(stream, "stream")};
  if (event.is_none()) return order;
  order.event = ToEvent(event);
  if (!IsInteger(event)) order.event_object = py::reinterpret_borrow<py::object>(event);
  return order;
}

int DeviceSaid(py::handle object) {
  // torch and CuPy streams; then torch, CuPy and cuda.core devices.
  for (const char* name : {"device_index", "device_id"}) {
    const auto number = Attribute(object, name);
    if (number && IsInteger(number)) return number.cast<int>();
  }
  const auto device = Attribute(object, "device");
  if (!device) return -1;
  if (IsInteger(device)) return device.cast<int>();
  for (const char* name : {"index", "id", "device_id"}) {
    const auto number = Attribute(device, name);
    if (number && IsInteger(number)) return number.cast<int>();
  }
  return -1;
}

}  // namespace kvxfer::python
