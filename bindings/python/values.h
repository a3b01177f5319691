// Plain values of the interface: notifications, events, explanations, layouts.

#ifndef KVXFER_BINDINGS_PYTHON_VALUES_H_
#define KVXFER_BINDINGS_PYTHON_VALUES_H_

#include <pybind11/pybind11.h>

namespace kvxfer::python {

// Includes those of KV caches; layouts are in layout.cc.
void BindValues(pybind11::module_& module);
void BindLayout(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_VALUES_H_
