// What OptionsFromEnvironment (kvxfer/options.h) reads.
//
// Thread-safety: as getenv's: no other thread may change the environment meanwhile.
#ifndef KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_
#define KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_

#include <string>
#include <vector>

namespace kvxfer {

// The names of all variables that it reads, in the order in which it does, but for
// KVXFER_<BACKEND>_<KEY>, which belong to backends.
std::vector<std::string> EnvironmentVariables();

// A sentence for each variable that is set, has the prefix and is read by nobody, with the name
// that was meant where that can be guessed. OptionsFromEnvironment logs each as a warning, once a
// process.
std::vector<std::string> UnknownVariables();

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_OPTIONS_ENV_H_
