#include "src/core/base/reason.h"

#include "absl/strings/cord.h"

namespace kvxfer {
namespace {

constexpr char kUrl[] = "kvxfer/reason";

}  // namespace

const char* ToString(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "none";
    case Reason::kAddressInUse:
      return "address in use";
    case Reason::kPeerRestarted:
      return "peer restarted";
    case Reason::kPeerGone:
      return "peer gone";
  }
  return "unknown";
}

absl::Status WithReason(absl::Status status, Reason reason) {
  status.SetPayload(kUrl, absl::Cord(ToString(reason)));
  return status;
}

Reason ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return Reason::kNone;
  for (const Reason reason : {Reason::kAddressInUse, Reason::kPeerRestarted, Reason::kPeerGone}) {
    if (*payload == ToString(reason)) return reason;
  }
  return Reason::kNone;
}

}  // namespace kvxfer
