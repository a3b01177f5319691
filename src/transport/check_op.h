// What every backend asks of an op before it looks at the op's blocks.
//
// Thread-safety: a function without state.

#ifndef KVXFER_TRANSPORT_CHECK_OP_H_
#define KVXFER_TRANSPORT_CHECK_OP_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/backend.h"

namespace kvxfer {

// What one op may be on one endpoint.
struct OpLimits {
  size_t rails = 1;
  size_t bytes = 0;
  size_t pieces = 0;
};

// InvalidArgument: `op` can never be carried out, because it names no rail or no transfer, or is
// too large. The message begins with `backend`.
absl::Status CheckOp(const Op& op, const OpLimits& limits, std::string_view backend);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_CHECK_OP_H_
