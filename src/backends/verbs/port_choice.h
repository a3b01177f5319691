// Which ports of this host are used: patterns of the user's (src/core/topology/port_selector.h) and
// what the topology knows of them, made into plain names.
//
// Thread-safety: functions without state.

#ifndef KVXFER_BACKENDS_VERBS_PORT_CHOICE_H_
#define KVXFER_BACKENDS_VERBS_PORT_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/options.h"
#include "src/core/topology/topology.h"

namespace kvxfer::verbs {

// Adds those of `names` that `topology` lacks, with what libibverbs says of them. A device that
// cannot be asked is left out.
void AddMissing(Ibv& ibv, const std::vector<std::string>& names, Topology& topology);

// `options` with every port by its name: `devices` lists those to be used ("mlx5_0:1"), `fabrics`
// has an entry for each that the user names a fabric for ("red=mlx5_0:1"). Of the ports of one wire
// (a physical function and its virtual ones) one is used, whichever of them come up later
// (LeaveOutSharers). An empty topology leaves `options` as they are; another takes the user's names
// of fabrics. An error names the option and says what ports there are.
absl::StatusOr<VerbsOptions> ChoosePorts(VerbsOptions options, Topology* topology);

// What is named in `asked`, and not by a pattern for many, has to be in use: NotFound where none of
// the `chosen` ports that an entry names is among `used`. `why` a device is not, if that is known.
absl::Status CheckNamed(const std::vector<std::string>& asked, const VerbsOptions& chosen,
                        const Topology& topology, const std::vector<std::string>& used,
                        const absl::Status& why);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PORT_CHOICE_H_
