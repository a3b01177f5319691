// Copies of parts of a sysfs tree, to be looked at elsewhere.
#ifndef KVXFER_CLI_TOPO_SYSFS_COPY_H_
#define KVXFER_CLI_TOPO_SYSFS_COPY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/core/base/sysfs.h"

namespace kvxfer::cli {

// Copies what is at each of `paths` (a file's text, a folder without what is in it), and every link
// on the way there as a link. Files are read to their end, whatever size they claim; a device file
// becomes an empty one, and of what is not there the folder it would be in is made. `to` is made,
// or is an empty folder. FailedPrecondition: it is not empty; Internal: it cannot be written.
absl::Status CopySysfs(const Sysfs& from, const std::vector<std::string>& paths,
                       const std::string& to);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_SYSFS_COPY_H_
