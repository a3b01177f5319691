// Backends that are loaded at run time: the interface between libkvxfer_backend_<name>.so and the
// program that loads it. A plugin is a backend (kvxfer/backend.h) and the one line below. It
// contains its own copy of the parts of kvxfer that it uses and links nothing from the program.
// docs/adding-a-backend.md, "As a plugin", has the details.
//
// Both sides pass C++ objects to each other, so a plugin works with exactly one version of kvxfer
// and one toolchain. Any other plugin is refused with an explanation, before any of its code is
// called.
//
// Thread-safety: any thread. Lifetime: a plugin that was loaded is never unloaded.
//
// Example (all that makes a backend a plugin):
//   KVXFER_BACKEND_PLUGIN(wire, MakeWireBackend)

#ifndef KVXFER_PLUGIN_H_
#define KVXFER_PLUGIN_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/log.h"
#include "kvxfer/version.h"

namespace kvxfer {

inline constexpr uint64_t kPluginMagic = 0x6b76786665722b31;
// Increased with every change of BackendPlugin, PluginHost, kvxfer/backend.h or
// kvxfer/block_range.h.
inline constexpr uint32_t kPluginAbi = 7;
inline constexpr char kPluginEntry[] = "kvxfer_backend_plugin";

// What the program provides to a plugin: its log, with its level and its sink.
struct PluginHost {
  bool (*log_enabled)(LogLevel level) = nullptr;
  void (*log_line)(LogLevel level, std::string_view line) = nullptr;
};

// What the entry point, `const BackendPlugin* kvxfer_backend_plugin()`, returns; never destroyed.
struct BackendPlugin {
  // These fields keep their place in every version. `toolchain` is what PluginToolchain() returned
  // where the plugin was compiled.
  uint64_t magic = kPluginMagic;
  uint32_t abi = kPluginAbi;
  uint32_t bytes = sizeof(BackendPlugin);
  const char* name = nullptr;
  const char* kvxfer_version = kVersion;
  const char* toolchain = nullptr;

  // The fields below are read only if all of the above match.
  // Makes the backend, as MakeBackend does; the context is valid during the call only.
  absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendContext& context) = nullptr;
  // The vendor library that the plugin uses, for a person: "UCX 1.13.1 from /usr/lib/libucp.so.0".
  // May be null.
  std::string (*library_version)() = nullptr;
  // Called before everything else, and again by each program or library that loads the plugin.
  void (*use_host)(const PluginHost& host) = nullptr;
};

// From now on this copy of kvxfer logs through `host`, which must stay valid until the process
// ends.
void UsePluginHost(const PluginHost& host);

namespace plugin_internal {

// Each probe adds one virtual function after the last one of its base. That function's index in the
// vtable tells how many virtual functions the base has.
struct BackendProbe : Backend {
  virtual void Behind();
};
struct EndpointProbe : Endpoint {
  virtual void Behind();
};
template <typename T>
uint64_t PlaceOf(void (T::*function)()) {
  uint64_t place = 0;
  static_assert(sizeof(function) >= sizeof(place));
  std::memcpy(&place, &function, sizeof(place));
  return place;
}

template <typename... T>
std::string SizesOf() {
  std::string text;
  ((text += (text.empty() ? "" : ".") + std::to_string(sizeof(T))), ...);
  return text;
}

}  // namespace plugin_internal

// Describes what must match when code that was compiled separately exchanges C++ objects: compiler,
// standard library, Abseil, and the sizes and vtables of the types in this interface. Hidden
// visibility, so that a plugin never binds to the program's copy of this function.
[[gnu::visibility("hidden")]] inline std::string PluginToolchain() {
#if defined(__clang__)
  std::string text = "clang++ " + std::to_string(__clang_major__);
#else
  std::string text = "g++ " + std::to_string(__GNUC__);
#endif
  text += ", C++ ABI " + std::to_string(__GXX_ABI_VERSION);
#if defined(_GLIBCXX_RELEASE)
  text += ", libstdc++ " + std::to_string(_GLIBCXX_RELEASE);
  text += _GLIBCXX_USE_CXX11_ABI ? " (new strings)" : " (old strings)";
#elif defined(_LIBCPP_VERSION)
  text += ", libc++ " + std::to_string(_LIBCPP_VERSION);
#endif
#if defined(ABSL_LTS_RELEASE_VERSION)
  text += ", Abseil " + std::to_string(ABSL_LTS_RELEASE_VERSION);
#endif
#if defined(__SANITIZE_ADDRESS__)
  text += ", AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
  text += ", ThreadSanitizer";
#endif
  using plugin_internal::PlaceOf;
  text += ", layout " +
          plugin_internal::SizesOf<
              std::string, std::vector<int>, absl::Status, absl::StatusOr<std::unique_ptr<Backend>>,
              AgentOptions, BackendOptions, BackendContext, HostIdentity, BackendInfo, Capabilities,
              LocalRegion, RemoteRegion, Registration, RemoteKey, BlockView, BlockPair, BlockPieces,
              Block, BlockRange, Run, Op, Posted, Event, EndpointInfo, RailInfo, FenceScope>() +
          "/" + std::to_string(PlaceOf(&plugin_internal::BackendProbe::Behind)) + "." +
          std::to_string(PlaceOf(&plugin_internal::EndpointProbe::Behind));
  return text;
}

[[gnu::visibility("hidden")]] inline BackendPlugin DescribePlugin(
    const char* name, absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendContext&),
    std::string (*library_version)() = nullptr) {
  static const std::string* const toolchain = new std::string(PluginToolchain());
  return {.name = name,
          .toolchain = toolchain->c_str(),
          .make = make,
          .library_version = library_version,
          .use_host = &UsePluginHost};
}

}  // namespace kvxfer

// KVXFER_BACKEND_PLUGIN(name, factory[, library_version]) makes the shared library that it is
// compiled into the plugin of backend `name`. Use it once per library, outside of namespaces.
#define KVXFER_BACKEND_PLUGIN(plugin_name, ...)                            \
  extern "C" [[gnu::visibility("default")]] const ::kvxfer::BackendPlugin* \
  kvxfer_backend_plugin() {                                                \
    static const ::kvxfer::BackendPlugin plugin =                          \
        ::kvxfer::DescribePlugin(#plugin_name, __VA_ARGS__);               \
    return &plugin;                                                        \
  }

#endif  // KVXFER_PLUGIN_H_
