// The views of a host that `kvxfer doctor` makes.
#ifndef KVXFER_CLI_DOCTOR_VIEW_H_
#define KVXFER_CLI_DOCTOR_VIEW_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/backends/registry.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

// All that kvxfer is made for, and other plugins: one that is not here is said to be so, not left
// out.
std::vector<BackendOrigin> AllBackends();
inline bool IsHere(const BackendOrigin& backend) {
  return backend.built_in || !backend.file.empty();
}

// An error of that backend without its name, which both it and who made it put before it. For where
// the name is said anyway.
std::string WithoutName(std::string_view why, const std::string& backend);

// Of the host that this process runs on, and of the rights that it has: opens device files, asks
// libraries for their version, makes each backend once.
std::unique_ptr<SystemView> MakeLiveView(Topology topology);

// Of files below another root. Device files are judged by their mode: one that is for its owner and
// group alone counts as not to be opened.
std::unique_ptr<SystemView> MakeTreeView(Sysfs files, Topology topology);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_VIEW_H_
