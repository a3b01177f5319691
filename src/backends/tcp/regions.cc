#include "src/backends/tcp/regions.h"

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"

namespace kvxfer::tcp {

TcpRegistration::~TcpRegistration() {
  if (backend_ != nullptr) backend_->CloseRegion(*this);
}

std::string TcpRegistration::WhyNot(const WireRun& run, Access wanted) const {
  if (!Allows(access_, wanted)) {
    return absl::StrCat("the region does not allow remote ",
                        wanted == Access::kRemoteRead ? "reads" : "writes");
  }
  return absl::StrCat("outside of the region, which is ", bytes_, " bytes at 0x", absl::Hex(base_),
                      " (", run.bytes, " bytes asked for)");
}

RegionMap::~RegionMap() {
  for (auto& [rkey, registration] : by_rkey_) registration->Detach();
}

bool RegionMap::Insert(TcpRegistration* registration) {
  return by_rkey_.emplace(registration->rkey(), registration).second;
}

void RegionMap::Erase(const TcpRegistration& registration) {
  by_rkey_.erase(registration.rkey());
  recent_.fill(nullptr);
}

TcpRegistration* RegionMap::Find(uint32_t rkey) {
  TcpRegistration*& recent = recent_[rkey % recent_.size()];
  if (recent != nullptr && recent->rkey() == rkey) return recent;
  const auto it = by_rkey_.find(rkey);
  if (it == by_rkey_.end()) return nullptr;
  recent = it->second;
  return recent;
}

absl::StatusOr<const TcpRegistration*> RegionMap::Check(const WireRun& run, Access wanted) {
  const TcpRegistration* registration = Find(run.rkey);
  if (registration != nullptr && registration->Grants(run, wanted)) return registration;
  return absl::PermissionDeniedError(absl::StrCat(
      "rkey 0x", absl::Hex(run.rkey), ", address 0x", absl::Hex(run.address), ": ",
      registration == nullptr ? "no region has that rkey" : registration->WhyNot(run, wanted)));
}

}  // namespace kvxfer::tcp
