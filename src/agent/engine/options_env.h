// The environment variables that OptionsFromEnvironment (kvxfer/options.h) reads.
//
// Thread-safety: as for getenv: no other thread may change the environment during a call.
#ifndef KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_
#define KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvxfer {

// The names of all variables that OptionsFromEnvironment reads, in that order, except
// KVXFER_<BACKEND>_<KEY>, which belong to backends.
std::vector<std::string> EnvironmentVariables();

// FailedPrecondition: CUDA_DEVICE_MAX_CONNECTIONS, which the CUDA driver reads once, gives all
// streams of this process one hardware queue. Thread-safety: any thread; the variable is read once.
absl::Status CheckCudaQueues();

// One sentence for each variable that is set, begins with KVXFER_, and is read by no part of
// kvxfer; with the name that was probably meant, if one is close. OptionsFromEnvironment logs each
// sentence as a warning once per process.
std::vector<std::string> UnknownVariables();

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_
