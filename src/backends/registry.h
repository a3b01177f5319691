// Which backends there are: built in, as plugins, and known but not here.
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

// Whether a backend is one of DefaultBackends().
enum class ByDefault : uint8_t {
  kAlways,
  kNever,
  kOnEfa,  // where the host has such a device: loading it takes long
};

// A backend that kvxfer is made for, whether this build has it or not.
struct KnownBackend {
  std::string_view name;
  ByDefault by_default = ByDefault::kAlways;
  std::string_view remedy{};  // where it is neither built in nor a plugin
};

// In the order of preference.
std::span<const KnownBackend> KnownBackends();

// Where a backend comes from.
struct BackendOrigin {
  std::string name{};
  bool built_in = false;
  std::string file{};  // of its plugin; empty: built in, or not here
};

// Of all that are known, in the order of preference, and of other plugins by name. Loads nothing.
std::vector<BackendOrigin> ListBackends(const AgentOptions& options);

bool IsBuiltIn(std::string_view name);

// Whether the host has an EFA device. `root`: another folder than /, for tests.
bool HasEfaDevice(const std::string& root = "/");

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_REGISTRY_H_
