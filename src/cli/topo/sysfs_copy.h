// Copies parts of a sysfs tree, for a look at them on another host.
#ifndef KVXFER_CLI_TOPO_SYSFS_COPY_H_
#define KVXFER_CLI_TOPO_SYSFS_COPY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/core/base/sysfs.h"

namespace kvxfer::cli {

// Copies the file or folder at each of `paths`, a folder without its contents, and each link on the
// way as a link. Files are read to their end, whatever size they claim. A device file becomes an
// empty file. For a path that does not exist, the folder that would contain it is created. `to` is
// created, or is an empty folder. FailedPrecondition: it is not empty. Internal: it cannot be
// written.
absl::Status CopySysfs(const Sysfs& from, const std::vector<std::string>& paths,
                       const std::string& to);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_SYSFS_COPY_H_
