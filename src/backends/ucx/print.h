// What UCX reveals about itself only as text: prints it into a string and searches that.
//
// Thread-safety: functions without state.

#ifndef KVXFER_BACKENDS_UCX_PRINT_H_
#define KVXFER_BACKENDS_UCX_PRINT_H_

#include <cstdio>
#include <set>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace kvxfer::ucx {

// The text that `print` writes; empty if memory for it cannot be allocated.
std::string Printed(absl::FunctionRef<void(FILE*)> print);

// The value in a line "NAME=value" of `text`; empty if there is no such line.
std::string ValueOf(std::string_view text, std::string_view name);

// The names before the slash in words like "tcp/eth0", each once. `text` is UCX's print of a
// context's resources or of an endpoint's lanes.
std::set<std::string> Transports(std::string_view text);

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_PRINT_H_
