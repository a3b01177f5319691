// MakeBackend: from a name to a backend, decorated where the name says so.

#include <string>

#include "kvxfer/backend.h"
#include "src/backends/builtin_backends.h"
#include "src/backends/faulty/factory.h"
#include "src/core/strings.h"

namespace kvxfer {
namespace {

constexpr std::string_view kFaultyPrefix = "faulty:";

absl::Status Unknown(std::string_view name) {
  std::string known;
  for (const BuiltinBackend& backend : BuiltinBackends()) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", ToAbsl(backend.name));
  }
  return absl::NotFoundError(absl::StrCat("no backend \"", ToAbsl(name), "\"; known: ", known,
                                          ", and faulty:<one of these>"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendContext& context) {
  const bool faulty = name.starts_with(kFaultyPrefix);
  const std::string_view plain = faulty ? name.substr(kFaultyPrefix.size()) : name;
  for (const BuiltinBackend& backend : BuiltinBackends()) {
    if (backend.name != plain) continue;
    auto made = backend.make(context);
    if (!made.ok()) return Annotate(made.status(), name);
    return faulty ? MakeFaultyBackend(*std::move(made), context) : std::move(made);
  }
  return Unknown(name);
}

}  // namespace kvxfer
