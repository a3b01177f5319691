// What the application's threads may know of the peers: a view of each, to plan transfers by.
//
// Thread-safety: all methods from any thread. The driver publishes views and takes them back.

#ifndef KVXFER_AGENT_ENGINE_PEER_VIEWS_H_
#define KVXFER_AGENT_ENGINE_PEER_VIEWS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "src/agent/session/peer.h"
#include "src/core/base/name_map.h"

namespace kvxfer {

class PeerViews {
 public:
  // Takes the place of an earlier view of the same name.
  void Publish(std::shared_ptr<const PeerView> view);
  void Remove(std::string_view peer);

  absl::StatusOr<std::shared_ptr<const PeerView>> Find(std::string_view peer) const;
  static absl::Status Unknown(std::string_view peer);

  // How many transfers are posted and have not ended, to which peers.
  struct Queued {
    uint64_t transfers = 0;
    std::string peers{};  // for people
  };
  Queued CountQueued() const;

 private:
  mutable std::mutex mu_;
  NameMap<std::shared_ptr<const PeerView>> views_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PEER_VIEWS_H_
