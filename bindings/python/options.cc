#include "bindings/python/options.h"

#include <pybind11/stl.h>

#include <cstring>
#include <filesystem>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bindings/python/status.h"
#include "bindings/python/wait.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

// One field of a struct by the name that it has in C++.
template <typename Struct>
struct Field {
  const char* name;
  void (*set)(Struct&, py::handle value);
};

template <typename T>
T Convert(py::handle value) {
  if constexpr (std::is_same_v<T, Duration>) {
    return ToDuration(value.cast<double>(), "a duration");
  } else if constexpr (std::is_same_v<T, ControlCarrier>) {
    auto carrier = ParseControlCarrier(value.cast<std::string>());
    if (!carrier.ok()) throw py::cast_error(std::string(carrier.status().message()));
    return *carrier;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    // A string is a sequence too, of characters.
    if (py::isinstance<py::str>(value)) throw py::cast_error("a list of strings");
    return value.template cast<T>();
  } else {
    return value.template cast<T>();
  }
}

template <auto member>
struct Setter;
template <typename Struct, typename T, T Struct::*member>
struct Setter<member> {
  static void Set(Struct& options, py::handle value) { options.*member = Convert<T>(value); }
};

#define KVXFER_FIELD(type, field) \
  { #field, &Setter < &type::field> ::Set }

constexpr Field<AgentOptions> kAgent[] = {
    KVXFER_FIELD(AgentOptions, backends),
    KVXFER_FIELD(AgentOptions, plugin_path),
    KVXFER_FIELD(AgentOptions, control),
    KVXFER_FIELD(AgentOptions, require_backends),
    KVXFER_FIELD(AgentOptions, listen),
    KVXFER_FIELD(AgentOptions, advertise),
    KVXFER_FIELD(AgentOptions, serve_metadata),
    KVXFER_FIELD(AgentOptions, stripe_from),
    KVXFER_FIELD(AgentOptions, heartbeat),
    KVXFER_FIELD(AgentOptions, suspect_after),
    KVXFER_FIELD(AgentOptions, connect_timeout),
    KVXFER_FIELD(AgentOptions, cancel_grace),
    KVXFER_FIELD(AgentOptions, kv_request_timeout),
    KVXFER_FIELD(AgentOptions, max_notifications),
    KVXFER_FIELD(AgentOptions, max_notification_bytes),
    KVXFER_FIELD(AgentOptions, max_active_transfers),
    KVXFER_FIELD(AgentOptions, spin),
    KVXFER_FIELD(AgentOptions, staging_bytes),
    KVXFER_FIELD(AgentOptions, copy_sms),
};
#undef KVXFER_FIELD

// False: there is no such field.
template <typename Struct, size_t n>
bool Set(Struct& options, const Field<Struct> (&fields)[n], const std::string& name,
         py::handle value) {
  for (const Field<Struct>& field : fields) {
    if (name != field.name) continue;
    try {
      field.set(options, value);
    } catch (const py::cast_error&) {
      throw py::type_error(absl::StrCat("option ", name, " is ", std::string(py::repr(value)),
                                        ", which is not of its type (kvxfer/options.h)"));
    }
    return true;
  }
  return false;
}

[[noreturn]] void RefuseName(const std::string& name) {
  throw py::type_error(
      absl::StrCat("there is no option ", name, "; kvxfer/options.h has all of AgentOptions"));
}

// A value of a backend's option, as its text.
std::string OptionText(const std::string& name, py::handle value) {
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>() ? "1" : "0";
  if (py::isinstance<py::int_>(value) || py::isinstance<py::float_>(value)) return py::str(value);
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    std::vector<std::string> items;
    for (const py::handle item : value) items.push_back(OptionText(name, item));
    return absl::StrJoin(items, ",");
  }
  throw py::type_error(absl::StrCat("option ", name, " is ", std::string(py::repr(value)),
                                    ", which is no text, number, truth value or list"));
}

py::dict DictOf(const std::string& name, py::handle value) {
  if (py::isinstance<py::dict>(value)) return py::reinterpret_borrow<py::dict>(value);
  throw py::type_error(absl::StrCat("option ", name, " is not a dict"));
}

// {"verbs": {"devices": ["mlx5_0"], "queue_depth": 512}}
void SetSections(AgentOptions& options, py::handle sections) {
  for (const auto& [backend, section] : DictOf("backend", sections)) {
    const auto name = std::string(py::str(backend));
    BackendOptions& out = options.backend[name];
    for (const auto& [key, value] : DictOf(absl::StrCat("backend.", name), section)) {
      const auto option = std::string(py::str(key));
      out[option] = OptionText(absl::StrCat("backend.", name, ".", option), value);
    }
  }
}

}  // namespace

AgentOptions ToOptions(const std::string& name, bool environment, const py::kwargs& arguments) {
  AgentOptions options = environment ? Value(OptionsFromEnvironment()) : AgentOptions();
  if (!name.empty()) options.name = name;
  for (const auto& [key, value] : arguments) {
    const auto field = std::string(py::str(key));
    if (field == "backend") {
      SetSections(options, value);
    } else if (!Set(options, kAgent, field, value)) {
      RefuseName(field);
    }
  }
  return options;
}

}  // namespace kvxfer::python
