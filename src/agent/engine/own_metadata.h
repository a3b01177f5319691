// This agent's metadata, as peers need it. It is encoded once for all peers that ask over the
// network, until it changes.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_OWN_METADATA_H_
#define KVXFER_AGENT_ENGINE_OWN_METADATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/agent/engine/runtime.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer {

class OwnMetadata {
 public:
  explicit OwnMetadata(const Runtime* runtime) : runtime_(runtime) {}

  AgentMetadata Describe() const;
  // Encoded. Shared with the connections that are sending it.
  std::shared_ptr<const std::string> Served();

 private:
  using Addresses = std::vector<AgentMetadata::BackendAddress>;
  // They change without Runtime::revision.
  Addresses AddressesNow() const;

  const Runtime* const runtime_;
  // What was served last, and of what it was made.
  std::shared_ptr<const std::string> served_;
  uint64_t revision_ = 0;
  Addresses addresses_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_OWN_METADATA_H_
