// The paths to one peer: which backends reach it, the link of each, when one that failed is tried
// again, and which of them a transfer takes.
//
// A transfer takes the best path that reaches its memory at both ends; GPU memory that no path
// reaches is staged over one that can. A path that failed is not waited for where another one
// suits, and is tried again beside it after a rest. Links are made when a transfer wants one.
//
// AgentOptions::control may say that a path moves only data. It is taken once another one carries
// the control frames.
//
// One attempt over each path that fails shows that the peer cannot be reached, except where it says
// otherwise itself: where no other path is left, one that carried before, to a peer that is
// connected to this agent, is tried for Session::kAbandonAfter.
//
// What a link says goes to its user, who tells the set of what concerns it: OnProven and OnDown.
//
// Thread-safety: none; owned by the engine. Split: path_set.cc (which link; connecting, loss),
// path_set_reach.cc (which memory a path reaches), path_set_explain.cc (what is told of them).

#ifndef KVXFER_AGENT_SESSION_PATH_SET_H_
#define KVXFER_AGENT_SESSION_PATH_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/link.h"
#include "src/agent/session/remote_regions.h"
#include "src/core/plan/path_choice.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer {

class PathSet {
 public:
  class User : public LinkUser {
   public:
    // False: connections of the session before are not down yet. No link is made now.
    virtual bool MayConnect() const = 0;
    // The peer has a connection of its own to this agent.
    virtual bool PeerIsConnected() const = 0;
    // A connection carries control frames.
    virtual bool MaySpeak() const = 0;
  };

  // Everything here outlives the set. `metadata` and `regions` are the peer's; the paths are those
  // that `metadata` offers now.
  PathSet(Runtime* runtime, const AgentMetadata* metadata, const RemoteRegions* regions,
          User* user);

  size_t links() const;
  // The first link that is up; null: none is.
  Link* UpLink();
  void ForEachLink(absl::FunctionRef<void(Link&)> visit);
  void ForEachUpLink(absl::FunctionRef<void(Link&)> visit);

  // The link for a transfer; null while one is being made; or why there is none.
  // ResourceExhausted: each path that was tried found nothing left to connect with. A path that
  // failed since the transfer was posted is not waited for, but for the exception above.
  absl::StatusOr<Link*> LinkFor(const internal::TransferRecord& record, Time now);
  // The same for what carries no data and was posted at `posted`.
  absl::StatusOr<Link*> LinkForMessages(Time posted, Time now);
  // Dials one of the paths whose rest is over, if there is one.
  void Redial(Time now);

  // Whether a transfer is staged over `link`, which LinkFor returned for it.
  bool Stages(const Link& link, const internal::TransferRecord& record) const;
  // Says so, once for each backend that it changes to: no silent fallback.
  void TellStaged(const internal::TransferRecord& record, const Link& link);
  // Why a link does not reach the peer's memory of a transfer though there are keys for it. OK: it
  // does, as far as is known.
  static absl::Status WhyBeyond(const Link& link, const internal::TransferRecord& record);
  // Newer metadata have come: what was beyond reach may not be.
  void OnMetadata();

  // Both a link's session and a rail of it are up: data may take it.
  void OnProven(Link& link);
  // The link has ended; it is destroyed after the round (Runtime::finished).
  void OnDown(Link& link, const absl::Status& why, Time now);

  // A path of `backend` (empty: any) takes data.
  bool HasReady(const std::string& backend) const;
  // Why none does.
  absl::Status Unreachable(const std::string& backend) const;
  // OK: one of `backends` (empty: all) could reach the peer.
  absl::Status CheckReachable(const std::vector<std::string>& backends) const;
  // OK: one that could reach it carries control frames, as AgentOptions::control has it.
  absl::Status CheckCarrier() const;
  // When something is due of a link, or, if transfers wait, of a path. `pumped`: what was due until
  // then has been seen to.
  Time NextTimer(bool waiting, Time pumped) const;
  Explanation Explain(Time now) const;

 private:
  // One backend that both sides have.
  struct Path {
    size_t backend = 0;
    std::string address{};
    bool host = true;           // takes host memory
    absl::Status reachable{};   // static: the backend's own word
    absl::Status last_error{};  // of the last attempt or connection
    Time failed_at{};           // an attempt failed
    Time lost_at{};             // a link that had been proven went down
    Time retry_at{};
    uint32_t failures = 0;  // in a row
    PathMeasure seen{};
    std::unique_ptr<Link> link{};
  };
  using Suits = absl::FunctionRef<bool(const Path&)>;

  std::string_view NameOf(const Path& path) const;
  // The path is of that backend; empty: any is.
  bool IsOf(const Path& path, const std::string& backend) const;
  static bool Up(const Path& path) { return path.link && path.link->state == Link::State::kUp; }
  // Data passes too, not words alone.
  static bool Ready(const Path& path) { return Up(path) && path.link->proven; }
  PathOrder Preferred(uint64_t bytes, Time now) const;
  absl::StatusOr<Link*> LinkFor(const std::string& backend, uint64_t bytes, Time posted, Time now,
                                Suits suits, Link* second = nullptr);
  bool IsTriedOn(const Path& path, Time now) const;
  void PassOver(Path& path);
  void TryAgain(Path& path, Time now);
  absl::Status Dial(Path& path, Time now);
  std::string Connecting(const Path& path) const;

  // path_set_reach.cc
  // Whether a path reaches a region itself, of this agent or of the peer.
  bool ReachesLocal(const Path& path, const RegionView& region) const;
  bool ReachesRemote(const Path& path, const RegionView& region) const;
  // How a path gets at the memory of a transfer at both ends.
  enum class Reach : uint8_t { kNone, kStaged, kNative };
  Reach ReachOf(const Path& path, const internal::TransferRecord& record) const;
  absl::Status NoWay(const internal::TransferRecord& record, const absl::Status& unreachable) const;

  // path_set_explain.cc
  PathExplanation ExplainPath(const Path& path, Time now) const;
  static std::vector<RailExplanation> ExplainRails(const Link& link, Time now);
  void ExplainChoice(Explanation& out, Time now) const;
  MemoryExplanation ExplainPair(const Explanation& paths, MemoryKind local, MemoryKind remote,
                                Time now) const;
  void ExplainMemory(Explanation& out, Time now) const;

  Runtime* const runtime_;
  const AgentMetadata* const metadata_;
  const RemoteRegions* const regions_;
  User* const user_;
  std::vector<Path> paths_;  // in order of preference
  uint64_t last_link_ = 0;   // number of the link that was made last
  bool warned_fallback_ = false;
  std::string logged_staged_{};  // over which backend it was said last that GPU memory is staged
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_PATH_SET_H_
