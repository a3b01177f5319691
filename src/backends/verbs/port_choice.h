// Chooses the ports of this host to use: combines the user's patterns
// (src/core/topology/port_selector.h) with the topology, and produces plain port names.
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

// Adds those of `names` that `topology` lacks, with what libibverbs reports about them. A device
// that does not open is left out.
void AddMissing(Ibv& ibv, const std::vector<std::string>& names, Topology& topology);

// `options` with every port by name: `devices` lists the ports to use ("mlx5_0:1"); `fabrics` has
// an entry for each port that the user named a fabric for ("red=mlx5_0:1"). If several ports share
// one wire (a physical function and its virtual ones), one of them is used, whichever come up later
// (LeaveOutSharers). An empty topology leaves `options` unchanged; any other gets the user's fabric
// names. An error names the option and says which ports exist.
absl::StatusOr<VerbsOptions> ChoosePorts(VerbsOptions options, Topology* topology);

// Each device that `asked` names, other than by a pattern for many, must be in use. NotFound: none
// of the `chosen` ports that an entry names is in `used`. `why`: the reason why a device is not
// used, if known.
absl::Status CheckNamed(const std::vector<std::string>& asked, const VerbsOptions& chosen,
                        const Topology& topology, const std::vector<std::string>& used,
                        const absl::Status& why);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PORT_CHOICE_H_
