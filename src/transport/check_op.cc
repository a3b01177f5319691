#include "src/transport/check_op.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {

absl::Status CheckOp(const Op& op, const OpLimits& limits, std::string_view backend) {
  const BlockRange& blocks = op.blocks;
  if (op.rail < limits.rails && op.transfer != 0 && blocks.bytes <= limits.bytes &&
      blocks.pieces <= limits.pieces) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(backend), ": op ", op.id, " (rail ", op.rail, ", transfer ", op.transfer, ", ",
      blocks.bytes, " bytes, ", blocks.pieces, " pieces) is beyond the limits (", limits.rails,
      " rails, ", limits.bytes, " bytes, ", limits.pieces, " pieces) or names no transfer"));
}

}  // namespace kvxfer
