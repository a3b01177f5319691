// Where the tests' backends come from: the built-in ones, except that `verbs` runs over devices in
// memory, unless KVXFER_TEST_VERBS is set, which says that there are real ones.
#ifndef KVXFER_TESTS_SUPPORT_TEST_BACKENDS_H_
#define KVXFER_TESTS_SUPPORT_TEST_BACKENDS_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/options.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {

bool RealVerbs();

// Two RoCE devices of one port, in a subnet each, that all agents of this process share.
VerbsFabric& SharedFabric();

// Until it is destroyed, `verbs` runs over `fabric` in every agent that is made, with `options`, on
// a host of that topology and with those files; an agent has the devices that carry its name. One
// at a time.
class ScopedFabric {
 public:
  explicit ScopedFabric(VerbsFabric* fabric, verbs::VerbsOptions options = {},
                        Topology topology = {}, Sysfs sysfs = Sysfs());
  ~ScopedFabric();
};

// As MakeBackend.
absl::StatusOr<std::unique_ptr<Backend>> MakeTestBackend(std::string_view name,
                                                         const BackendContext& context);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TEST_BACKENDS_H_
