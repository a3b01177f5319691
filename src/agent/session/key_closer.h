// Closes the keys that an agent has of a peer's regions, over every link and for staging, once no
// transfer uses them.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_KEY_CLOSER_H_
#define KVXFER_AGENT_SESSION_KEY_CLOSER_H_

#include <cstdint>
#include <span>

#include "src/agent/session/outbound.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/quiesce_replies.h"
#include "src/agent/session/remote_regions.h"

namespace kvxfer {

class KeyCloser final : public QuiesceReplies::User {
 public:
  // All of them outlive it; `regions` are the peer's.
  KeyCloser(PathSet* paths, RemoteRegions* regions, const OutboundList* outbounds)
      : paths_(paths), regions_(regions), outbounds_(outbounds) {}

  // Of regions that no transfer uses.
  void DropKeys(std::span<const uint32_t> regions) override;
  // Of regions that are no more, as far as no transfer uses them.
  void DropDeadKeys();
  bool IsClosing() const override;

 private:
  PathSet* const paths_;
  RemoteRegions* const regions_;
  const OutboundList* const outbounds_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_KEY_CLOSER_H_
