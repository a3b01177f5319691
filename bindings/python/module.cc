// kvxfer._kvxfer: the C++ library for Python. What is pure Python is in kvxfer/.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "bindings/python/agent.h"
#include "bindings/python/descriptor_list.h"
#include "bindings/python/memory.h"
#include "bindings/python/status.h"
#include "bindings/python/transfer_handle.h"
#include "bindings/python/values.h"
#include "bindings/python/wait.h"
#include "kvxfer/log.h"
#include "kvxfer/metadata.h"
#include "kvxfer/version.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

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

// Python runs handlers of signals on the main thread only; no other asks for the GIL.
bool OnMainThread() {
  const py::object main = py::module_::import("threading").attr("main_thread")();
  return main.attr("ident").cast<uint64_t>() == PyThread_get_thread_ident();
}

py::bytes Fetch(const std::string& address, double timeout) {
  const Duration limit = ToDuration(timeout, "timeout");
  std::function<bool()> go_on;
  if (OnMainThread()) {
    go_on = [] {
      const py::gil_scoped_acquire gil;
      return PyErr_CheckSignals() == 0;
    };
  }
  const absl::StatusOr<std::string> metadata = [&] {
    const WithoutGil out;
    return FetchMetadata(address, limit, go_on);
  }();
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return Value(metadata);
}

}  // namespace

void BindAll(pybind11::module_& module) {
  module.attr("__version__") = kVersion;
  BindErrors(module);
  BindMemory(module);
  BindDescriptorList(module);
  BindValues(module);
  BindLayout(module);
  BindTransfer(module);
  BindAgent(module);
  module.def("fetch_metadata", &Fetch, pybind11::arg("address"), pybind11::arg("timeout") = 5.0,
             "What that agent's metadata() says, over the port where its tcp listens.");
  module.def("set_log_level", &SetLevel, pybind11::arg("level"),
             "What of the library's log goes to stderr; \"warning\" and worse by default.");
  // Agents that were not closed are, before the interpreter takes their memory down.
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function(&AgentHandle::CloseAll));
}

}  // namespace kvxfer::python

PYBIND11_MODULE(_kvxfer, module) { kvxfer::python::BindAll(module); }
