#include "src/agent/session/key_closer.h"

#include "src/cuda/closer.h"

namespace kvxfer {

void KeyCloser::DropKeys(std::span<const uint32_t> regions) {
  paths_->ForEachLink([regions](Link& link) { link.DropKeys(regions); });
  regions_->DropStagedKeys(regions);
}

void KeyCloser::DropDeadKeys() {
  const auto used = outbounds_->UsedKeys();
  paths_->ForEachLink([&](Link& link) { link.DropDeadKeys(*regions_, used); });
  regions_->DropDeadStagedKeys(used);
}

bool KeyCloser::IsClosing() const { return cuda::Closing(); }

}  // namespace kvxfer
