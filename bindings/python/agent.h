// kvxfer.Agent and what its parts share.

#ifndef KVXFER_BINDINGS_PYTHON_AGENT_H_
#define KVXFER_BINDINGS_PYTHON_AGENT_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/python/agent_handle.h"
#include "bindings/python/transfer_handle.h"

namespace kvxfer::python {

using AgentClass = pybind11::class_<AgentHandle, std::shared_ptr<AgentHandle>>;

// None, or what bytes, a bytearray or a memoryview holds. TypeError names `name`.
std::optional<std::string> ToPayload(pybind11::handle object, const char* name);

void BindAgent(pybind11::module_& module);
// KV caches, of that class.
void BindKv(AgentClass& agent);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_AGENT_H_
