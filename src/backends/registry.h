// Which backends exist: built in, as plugins, and those that kvxfer knows but that are missing
// here.
//
// Thread-safety: functions without state; any thread.

#ifndef KVXFER_BACKENDS_REGISTRY_H_
#define KVXFER_BACKENDS_REGISTRY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvxfer/options.h"

namespace kvxfer {

// Whether DefaultBackends() contains a backend.
enum class ByDefault : uint8_t {
  kAlways,
  kNever,
  kOnEfa,  // only on hosts with an EFA device, because loading it takes long
};

// A backend that kvxfer supports, whether this build contains it or not.
struct KnownBackend {
  std::string_view name;
  ByDefault by_default = ByDefault::kAlways;
  std::string_view remedy{};  // what to do if it is neither built in nor a plugin
};

// In the order of preference.
std::span<const KnownBackend> KnownBackends();

// Where a backend comes from.
struct BackendOrigin {
  std::string name{};
  bool built_in = false;
  std::string file{};  // of its plugin; empty: built in, or missing
};

// All known backends in the order of preference, then other plugins by name. Loads nothing.
std::vector<BackendOrigin> ListBackends(const AgentOptions& options);

bool IsBuiltIn(std::string_view name);

// Whether the host has an EFA device. `root` replaces / in tests.
bool HasEfaDevice(const std::string& root = "/");

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_REGISTRY_H_
