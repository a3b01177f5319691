#include <array>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kvxfer/options.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr std::array<std::pair<ControlCarrier, std::string_view>, 4> kNames = {{
    {ControlCarrier::kAuto, "auto"},
    {ControlCarrier::kTcp, "tcp"},
    {ControlCarrier::kRdma, "rdma"},
    {ControlCarrier::kShm, "shm"},
}};

}  // namespace

std::string_view NameOf(ControlCarrier carrier) {
  for (const auto& [one, name] : kNames) {
    if (one == carrier) return name;
  }
  return "?";
}

absl::StatusOr<ControlCarrier> ParseControlCarrier(std::string_view name) {
  for (const auto& [carrier, known] : kNames) {
    if (known == name) return carrier;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("control is one of auto, tcp, rdma and shm, not \"", ToAbsl(name), "\""));
}

}  // namespace kvxfer
