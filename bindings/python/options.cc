#include "bindings/python/options.h"

#include <pybind11/stl.h>

#include <cstring>
#include <filesystem>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
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

constexpr Field<VerbsOptions> kVerbs[] = {
    KVXFER_FIELD(VerbsOptions, devices),       KVXFER_FIELD(VerbsOptions, fabrics),
    KVXFER_FIELD(VerbsOptions, listen),        KVXFER_FIELD(VerbsOptions, gid_index),
    KVXFER_FIELD(VerbsOptions, p_key),         KVXFER_FIELD(VerbsOptions, service_level),
    KVXFER_FIELD(VerbsOptions, traffic_class), KVXFER_FIELD(VerbsOptions, mtu),
    KVXFER_FIELD(VerbsOptions, timeout),       KVXFER_FIELD(VerbsOptions, retry_count),
    KVXFER_FIELD(VerbsOptions, rnr_timer),     KVXFER_FIELD(VerbsOptions, queue_depth),
    KVXFER_FIELD(VerbsOptions, receive_depth), KVXFER_FIELD(VerbsOptions, max_inline),
    KVXFER_FIELD(VerbsOptions, stall_timeout),
};
constexpr Field<UcxOptions> kUcx[] = {
    KVXFER_FIELD(UcxOptions, tls),
    KVXFER_FIELD(UcxOptions, net_devices),
    KVXFER_FIELD(UcxOptions, listen),
};
constexpr Field<LibfabricOptions> kLibfabric[] = {
    KVXFER_FIELD(LibfabricOptions, provider),
    KVXFER_FIELD(LibfabricOptions, domains),
    KVXFER_FIELD(LibfabricOptions, listen),
};
constexpr Field<FaultOptions> kFaults[] = {
    KVXFER_FIELD(FaultOptions, seed),
    KVXFER_FIELD(FaultOptions, reorder_window),
    KVXFER_FIELD(FaultOptions, max_delay),
    KVXFER_FIELD(FaultOptions, overtake),
    KVXFER_FIELD(FaultOptions, error_probability),
    KVXFER_FIELD(FaultOptions, cut_probability),
    KVXFER_FIELD(FaultOptions, blackhole_after),
    KVXFER_FIELD(FaultOptions, slow_rail),
    KVXFER_FIELD(FaultOptions, slow_rail_delay),
    KVXFER_FIELD(FaultOptions, rail_down_probability),
    KVXFER_FIELD(FaultOptions, rail_down_for),
};
constexpr Field<AgentOptions> kAgent[] = {
    KVXFER_FIELD(AgentOptions, backends),
    KVXFER_FIELD(AgentOptions, plugin_path),
    KVXFER_FIELD(AgentOptions, require_backends),
    KVXFER_FIELD(AgentOptions, listen),
    KVXFER_FIELD(AgentOptions, advertise),
    KVXFER_FIELD(AgentOptions, tcp_streams),
    KVXFER_FIELD(AgentOptions, tcp_addresses),
    KVXFER_FIELD(AgentOptions, serve_metadata),
    KVXFER_FIELD(AgentOptions, loopback_rails),
    KVXFER_FIELD(AgentOptions, stripe_from),
    KVXFER_FIELD(AgentOptions, shm_copy_threads),
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

template <typename Struct, size_t n>
void SetAll(Struct& options, const Field<Struct> (&fields)[n], const std::string& group,
            py::handle values) {
  if (!py::isinstance<py::dict>(values)) {
    throw py::type_error(absl::StrCat("option ", group, " is not a dict of its fields"));
  }
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(values)) {
    const auto name = std::string(py::str(key));
    if (!Set(options, fields, name, value)) RefuseName(absl::StrCat(group, ".", name));
  }
}

}  // namespace

AgentOptions ToOptions(const std::string& name, bool environment, const py::kwargs& arguments) {
  AgentOptions options = environment ? Value(OptionsFromEnvironment()) : AgentOptions();
  if (!name.empty()) options.name = name;
  for (const auto& [key, value] : arguments) {
    const auto field = std::string(py::str(key));
    if (field == "verbs") {
      SetAll(options.verbs, kVerbs, field, value);
    } else if (field == "ucx") {
      SetAll(options.ucx, kUcx, field, value);
    } else if (field == "libfabric") {
      SetAll(options.libfabric, kLibfabric, field, value);
    } else if (field == "faults") {
      SetAll(options.faults, kFaults, field, value);
    } else if (!Set(options, kAgent, field, value)) {
      RefuseName(field);
    }
  }
  return options;
}

}  // namespace kvxfer::python
