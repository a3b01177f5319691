// Ops of a transfer that failed as those of a failing rail do, by rail. Either the rail's failure
// explains them, or they failed alone, and then the transfer fails.
//
// Thread-safety: none. A plain value.

#ifndef KVXFER_CORE_PROTOCOL_SUSPECT_OPS_H_
#define KVXFER_CORE_PROTOCOL_SUSPECT_OPS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace kvxfer {

class SuspectOps {
 public:
  bool empty() const { return ops_.empty(); }
  // Only the first of a rail is kept: it says why.
  void Add(uint32_t rail, const absl::Status& why) {
    if (std::ranges::find(ops_, rail, &Op::rail) == ops_.end()) ops_.push_back({rail, why});
  }
  // The rail failed.
  void Explain(uint32_t rail) {
    std::erase_if(ops_, [&](const Op& op) { return op.rail == rail; });
  }
  // The rail did not fail. Why its op did; nullopt: there was none.
  std::optional<absl::Status> TakeUnexplained(uint32_t rail) {
    const auto op = std::ranges::find(ops_, rail, &Op::rail);
    if (op == ops_.end()) return std::nullopt;
    absl::Status why = std::move(op->why);
    ops_.erase(op);
    return why;
  }

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  struct Op {
    uint32_t rail = 0;
    absl::Status why{};
  };
  std::vector<Op> ops_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SUSPECT_OPS_H_
