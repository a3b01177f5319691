// The views of a host for `kvxfer doctor`.
#ifndef KVXFER_CLI_DOCTOR_VIEW_H_
#define KVXFER_CLI_DOCTOR_VIEW_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/backends/registry.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

// All backends that kvxfer knows, and other plugins; also those that are not installed.
std::vector<BackendOrigin> AllBackends();
inline bool IsHere(const BackendOrigin& backend) {
  return backend.built_in || !backend.file.empty();
}

// An error of the backend without the backend's name, which may precede it twice; for reports that
// print the name anyway.
std::string WithoutName(std::string_view why, const std::string& backend);

// A view of the host that this process runs on, with its permissions: opens device files, asks
// libraries for their versions, creates each backend once.
std::unique_ptr<SystemView> MakeLiveView(Topology topology);

// A view of the files below another root. Device files are judged by their mode: one that not every
// user may open counts as not accessible.
std::unique_ptr<SystemView> MakeTreeView(Sysfs files, Topology topology);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_VIEW_H_
