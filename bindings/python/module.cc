// kvxfer._kvxfer: the C++ library for Python. What is pure Python is in kvxfer/.
#include <pybind11/pybind11.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "bindings/python/agent.h"
#include "bindings/python/descriptor_list.h"
#include "bindings/python/end_queue.h"
#include "bindings/python/memory.h"
#include "bindings/python/status.h"
#include "bindings/python/transfer_handle.h"
#include "bindings/python/values.h"
#include "kvxfer/log.h"
#include "kvxfer/version.h"

namespace kvxfer::python {
namespace {

void SetLevel(const std::string& level) {
  constexpr std::pair<const char*, LogLevel> kLevels[] = {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError},
                                                          {"off", LogLevel::kOff}};
  for (const auto& [name, known] : kLevels) {
    if (level == name) return SetLogLevel(known);
  }
  Refuse(absl::StrCat("level is \"", level,
                      "\"; expected \"debug\", \"info\", \"warning\", \"error\" or \"off\""));
}

}  // namespace

void BindAll(pybind11::module_& module) {
  module.attr("__version__") = kVersion;
  BindErrors(module);
  BindMemory(module);
  BindDescriptorList(module);
  BindValues(module);
  BindLayout(module);
  BindEndQueue(module);
  BindTransfer(module);
  BindAgent(module);
  module.def("set_log_level", &SetLevel, pybind11::arg("level"),
             "What of the library's log goes to stderr; \"warning\" and worse by default.");
  // Agents that were not closed are, before the interpreter takes their memory down.
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function(&AgentHandle::CloseAll));
}

}  // namespace kvxfer::python

PYBIND11_MODULE(_kvxfer, module) { kvxfer::python::BindAll(module); }
