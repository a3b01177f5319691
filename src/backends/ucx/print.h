// What UCX tells about itself only as text: printed into a string, and looked through.
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

// What `print` writes; empty where there is no memory for it.
std::string Printed(absl::FunctionRef<void(FILE*)> print);

// Of lines "NAME=value" the value; empty: there is no such line.
std::string ValueOf(std::string_view text, std::string_view name);

// Of words "tcp/eth0" in a print of a context's resources or an endpoint's lanes: "tcp", each once.
std::set<std::string> Transports(std::string_view text);

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_PRINT_H_
