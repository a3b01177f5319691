#include "src/transport/ring_choice.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::net {

absl::Status RingChoice::Wanted() const {
  if (control_ == ControlCarrier::kAuto || control_ == ControlCarrier::kShm) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "its `control` (KVXFER_CONTROL) names another way for control frames");
}

absl::Status RingChoice::DoWithout(const absl::Status& why) {
  if (control_ == ControlCarrier::kShm) {
    return absl::FailedPreconditionError(
        absl::StrCat("`control` (KVXFER_CONTROL) is shm, and messages cannot go through rings: ",
                     why.message()));
  }
  if (control_ == ControlCarrier::kAuto && !std::exchange(logged_, true)) {
    Log(LogLevel::kInfo, "{}: messages do not go through rings: {}", backend_,
        ToStd(why.message()));
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::net
