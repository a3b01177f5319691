// Text of C++ as str of Python. Names and errors of peers are checked and escaped where they are
// decoded; whatever comes through all the same must not raise out of a poll, so that bytes that are
// not UTF-8 become \xNN here instead of a UnicodeDecodeError.
//
// Thread-safety: with the GIL.

#ifndef KVXFER_BINDINGS_PYTHON_TEXT_H_
#define KVXFER_BINDINGS_PYTHON_TEXT_H_

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace kvxfer::python {

inline pybind11::str Text(std::string_view text) {
  PyObject* const made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (made == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(made);
}

// The getter of a property that is a std::string.
template <auto member>
struct TextOf;
template <typename Struct, std::string Struct::*member>
struct TextOf<member> {
  static pybind11::str Get(const Struct& of) { return Text(of.*member); }
};

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_TEXT_H_
