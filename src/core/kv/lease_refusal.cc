#include "src/core/kv/lease_refusal.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"

namespace kvxfer {
namespace {

constexpr char kUrl[] = "kvxfer/lease-refusal";

}  // namespace

const char* ToString(KvLeaseRefusal refusal) {
  switch (refusal) {
    case KvLeaseRefusal::kUnknown:
      return "unknown";
    case KvLeaseRefusal::kOtherContents:
      return "other contents";
    case KvLeaseRefusal::kOtherBlocks:
      return "other blocks";
    case KvLeaseRefusal::kEnded:
      return "ended";
    case KvLeaseRefusal::kBusy:
      return "busy";
  }
  return "unknown";
}

absl::Status WithRefusal(absl::Status status, KvLeaseRefusal refusal) {
  status.SetPayload(kUrl, absl::Cord(ToString(refusal)));
  return status;
}

std::optional<KvLeaseRefusal> LeaseRefusalOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return std::nullopt;
  for (int code = 1; code <= static_cast<int>(KvLeaseRefusal::kBusy); ++code) {
    const auto refusal = static_cast<KvLeaseRefusal>(code);
    if (*payload == ToString(refusal)) return refusal;
  }
  return std::nullopt;
}

}  // namespace kvxfer
