// Errors of kvxfer as exceptions of Python: one class a kind (kvxfer/_errors.py), with the text of
// the status.
//
// Thread-safety: any thread. Throwing needs no GIL; what translates it has it.

#ifndef KVXFER_BINDINGS_PYTHON_STATUS_H_
#define KVXFER_BINDINGS_PYTHON_STATUS_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvxfer::python {

// A status on its way to Python. `kind` names a class that says more than the code: "Closed",
// "StillActive"; null: that of the code.
class StatusError : public std::exception {
 public:
  explicit StatusError(absl::Status status, const char* kind = nullptr)
      : status_(std::move(status)), text_(status_.message()), kind_(kind) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const absl::Status& status() const { return status_; }
  const char* kind() const { return kind_; }

 private:
  absl::Status status_;
  std::string text_;
  const char* kind_;
};

inline void Check(absl::Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// InvalidArgument, which is a ValueError.
[[noreturn]] void Refuse(const std::string& text);

// The exception that an error of that status is, as an object; None for OK.
pybind11::object ToException(const absl::Status& status);

void BindErrors(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_STATUS_H_
