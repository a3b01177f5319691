#include "src/agent/engine/own_metadata.h"

#include <utility>

namespace kvxfer {

OwnMetadata::Addresses OwnMetadata::AddressesNow() const {
  Addresses addresses;
  for (const auto& backend : runtime_->backends) {
    addresses.push_back({std::string(backend->name()), backend->Describe().address});
  }
  return addresses;
}

AgentMetadata OwnMetadata::Describe() const {
  return {.name = runtime_->options.name,
          .incarnation = runtime_->incarnation,
          .min_version = kMinProtocolVersion,
          .max_version = kMaxProtocolVersion,
          .host = runtime_->host,
          .backends = AddressesNow(),
          .regions = runtime_->memory.Describe(runtime_->backends),
          .last_region = runtime_->memory.last_region(),
          .revision = runtime_->revision,
          .kv_caches = *runtime_->kv.table()};
}

std::shared_ptr<const std::string> OwnMetadata::Served() {
  Addresses addresses = AddressesNow();
  if (served_ == nullptr || revision_ != runtime_->revision || addresses_ != addresses) {
    served_ = std::make_shared<const std::string>(EncodeMetadata(Describe()));
    revision_ = runtime_->revision;
    addresses_ = std::move(addresses);
  }
  return served_;
}

}  // namespace kvxfer
