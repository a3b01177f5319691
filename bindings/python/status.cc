#include "bindings/python/status.h"

#include "absl/status/status.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

// kvxfer._errors is pure Python, so that it reads, documents and pickles as such.
py::object ErrorClass(const absl::Status& status, const char* kind) {
  const py::module_ errors = py::module_::import("kvxfer._errors");
  if (kind != nullptr) return errors.attr(kind);
  const py::dict by_code = errors.attr("BY_CODE");
  const py::str code(absl::StatusCodeToString(status.code()));
  if (by_code.contains(code)) return by_code[code];
  return errors.attr("Error");
}

py::object MakeException(const absl::Status& status, const char* kind) {
  const std::string text(status.message());
  // Text of a peer, or of a library beneath, need not be UTF-8.
  const auto message = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  return ErrorClass(status, kind)(message);
}

}  // namespace

void Refuse(const std::string& text) { throw StatusError(absl::InvalidArgumentError(text)); }

py::object ToException(const absl::Status& status) {
  if (status.ok()) return py::none();
  return MakeException(status, nullptr);
}

void BindErrors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(std::move(thrown));
    } catch (const StatusError& error) {
      const py::object exception = MakeException(error.status(), error.kind());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}

}  // namespace kvxfer::python
