// One connection from this agent to a peer over one backend, as the parts of the agent see it.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_LINK_H_
#define KVXFER_AGENT_SESSION_LINK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/session/shared_session.h"
#include "src/agent/staging/peer_stage.h"
#include "src/core/base/clock.h"
#include "src/core/plan/path_choice.h"
#include "src/core/plan/rail_picker.h"
#include "src/core/protocol/handshake.h"
#include "src/core/protocol/rail_fences.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

class Link;

// Receives the events of the links to a peer.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  virtual void OnLinkEvent(Link& link, Event& event) = 0;
};

class Link : public SessionLink {
 public:
  enum class State : uint8_t { kConnecting, kProving, kHello, kUp, kClosing };

  Link(LinkUser* user, uint64_t link_number, size_t backend_index, bool carries_control,
       PathMeasure* path_measure, std::unique_ptr<Endpoint> link_endpoint)
      : SessionLink(backend_index, true, carries_control, std::move(link_endpoint)),
        number(link_number),
        seen(path_measure),
        user_(user) {}
  void OnEvent(Event& event) override { user_->OnLinkEvent(*this, event); }
  bool open() const override { return state == State::kUp; }
  // At kConnected, when the endpoint knows its rails.
  void LearnRails(Duration fence_within, Time now);
  void Close(const absl::Status& why) override;

  // --- keys of the peer's regions ---
  // The key of a region that is not deregistered; made on first use. `its_backend`: this link's.
  // Unavailable: the peer's word on the region is still on its way.
  absl::StatusOr<const RemoteKey*> KeyOf(const RemoteRegions& regions, RegionId id,
                                         const Backend& its_backend);
  // Of regions that no transfer uses.
  void DropKeys(std::span<const uint32_t> regions);
  // Of regions that are no more, except those that transfers still use. Where memory is mapped, the
  // key is the mapping, and keeps the pages of a region that its owner has freed.
  void DropDeadKeys(const RemoteRegions& regions, const std::unordered_set<const RemoteKey*>& used);
  // GPU memory of the peer that the backend has a key for and cannot reach after all (no P2P, a GPU
  // hidden from this process), and why: it is staged over another path. OK: there is none, or the
  // region is not among it.
  absl::Status WhyBeyond() const;
  absl::Status WhyBeyond(RegionId region) const;
  // Newer metadata have come: it may not be any more.
  void ForgetBeyond() { beyond_.clear(); }

  const uint64_t number;    // of those to this peer, from 1
  PathMeasure* const seen;  // outlives the link
  State state = State::kConnecting;
  std::optional<Handshake> handshake{};  // in kProving: nobody has proved to be the peer yet
  HelloAnswer answer{};                  // in kHello: what the target has said so far
  // Frames that have overtaken the answer to the hello, which says of which session they are.
  std::vector<std::string> early{};
  size_t early_bytes = 0;
  bool was_up = false;
  // A rail of it has been up too: only now data takes it, and the attempt did not fail. A fabric
  // may let words through and no data.
  bool proven = false;
  Time prove_by{};        // from then on transfers do not wait for that where there is another path
  RailPicker choice{{}};  // from kConnected on
  RailFences rails{};     // the same
  // The peer's staging buffers as GPUs of this process reach them; null: they do not, or that has
  // not been tried.
  std::unique_ptr<PeerStage> stage{};
  bool stage_tried = false;
  bool full = false;     // every rail refused since Sender::Post began
  bool refused = false;  // the target said to try again soon: the attempt did not fail
  Time give_up{};        // for becoming up

 private:
  LinkUser* const user_;
  std::unordered_map<RegionId, std::unique_ptr<RemoteKey>> keys_;  // closed before the endpoint
  std::unordered_map<RegionId, absl::Status> beyond_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_LINK_H_
