#include "bindings/python/status.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "bindings/python/text.h"
#include "kvxfer/kv_cache.h"
#include "kvxfer/reason.h"

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

std::string Underscored(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}

py::object MakeException(const absl::Status& status, const char* kind) {
  const py::object message = Text({status.message().data(), status.message().size()});
  if (const auto refusal = LeaseRefusalOf(status)) {
    return py::module_::import("kvxfer._errors")
        .attr("LeaseRefused")(message, Underscored(ToString(*refusal)));
  }
  py::object exception = ErrorClass(status, kind)(message);
  if (const Reason reason = ReasonOf(status); reason != Reason::kNone) {
    exception.attr("reason") = Underscored(ToString(reason));
  }
  return exception;
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
