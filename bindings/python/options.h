// AgentOptions out of keyword arguments.

#ifndef KVXFER_BINDINGS_PYTHON_OPTIONS_H_
#define KVXFER_BINDINGS_PYTHON_OPTIONS_H_

#include <pybind11/pybind11.h>

#include <string>

#include "kvxfer/options.h"

namespace kvxfer::python {

// Durations in seconds; verbs, ucx, libfabric and faults as dicts of their own fields. What is not
// given is from the environment, or else the default. TypeError names what is not an option, or has
// another type.
AgentOptions ToOptions(const std::string& name, bool environment,
                       const pybind11::kwargs& arguments);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_OPTIONS_H_
