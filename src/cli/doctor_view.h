// The views of a host that `kvxfer doctor` makes.
#ifndef KVXFER_CLI_DOCTOR_VIEW_H_
#define KVXFER_CLI_DOCTOR_VIEW_H_

#include <array>
#include <memory>
#include <string_view>

#include "src/cli/doctor.h"

namespace kvxfer::cli {

// All that kvxfer is made for: one that is not built in is said to be so, not left out.
inline constexpr std::array<std::string_view, 7> kKnownBackends = {
    "loopback", "shm", "tcp", "verbs", "ucx", "libfabric", "cuda_ipc"};
bool IsBuiltIn(std::string_view backend);

// Of the host that this process runs on, and of the rights that it has: opens device files, asks
// libraries for their version, makes each backend once.
std::unique_ptr<SystemView> MakeLiveView(Topology topology);

// Of files below another root. Device files are judged by their mode: one that is for its owner and
// group alone counts as not to be opened.
std::unique_ptr<SystemView> MakeTreeView(Sysfs files, Topology topology);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_VIEW_H_
