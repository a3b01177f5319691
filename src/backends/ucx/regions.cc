#include "src/backends/ucx/regions.h"

#include "absl/strings/str_cat.h"

namespace kvxfer::ucx {

UcxRegistration::UcxRegistration(RegionMap* regions, const LocalRegion& region)
    : regions_(regions),
      rkey_(region.rkey),
      base_(reinterpret_cast<uint64_t>(region.span.data)),
      bytes_(region.span.bytes),
      access_(region.access) {}

UcxRegistration::~UcxRegistration() {
  if (regions_ != nullptr) regions_->Erase(*this);
}

std::string UcxRegistration::WhyNot(const Piece& piece, Access wanted) const {
  if (!Allows(access_, wanted)) {
    return absl::StrCat("the region does not allow remote ",
                        wanted == Access::kRemoteRead ? "reads" : "writes");
  }
  return absl::StrCat("outside of the region, which is ", bytes_, " bytes at 0x", absl::Hex(base_),
                      " (", piece.bytes, " bytes asked for)");
}

RegionMap::~RegionMap() {
  for (auto& [rkey, registration] : by_rkey_) registration->Detach();
}

bool RegionMap::Insert(UcxRegistration* registration) {
  return by_rkey_.emplace(registration->rkey(), registration).second;
}

void RegionMap::Erase(const UcxRegistration& registration) {
  const auto it = by_rkey_.find(registration.rkey());
  // One that was refused its rkey goes without touching whose that is.
  if (it != by_rkey_.end() && it->second == &registration) by_rkey_.erase(it);
  recent_ = nullptr;
}

absl::Status RegionMap::Check(const Piece& piece, Access wanted) {
  if (recent_ == nullptr || recent_->rkey() != piece.rkey) {
    const auto it = by_rkey_.find(piece.rkey);
    recent_ = it == by_rkey_.end() ? nullptr : it->second;
  }
  if (recent_ != nullptr && recent_->Grants(piece, wanted)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "rkey 0x", absl::Hex(piece.rkey), ", address 0x", absl::Hex(piece.address), ": ",
      recent_ == nullptr ? "no region has that rkey" : recent_->WhyNot(piece, wanted)));
}

}  // namespace kvxfer::ucx
