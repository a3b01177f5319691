// What the parts of the engine share: options, identity, backends, memory, ops in flight, and the
// ways out to the application. Owned by Engine; parts hold a pointer to it.
//
// Thread-safety: by the owner of the engine, but for what its members say of themselves.

#ifndef KVXFER_AGENT_ENGINE_RUNTIME_H_
#define KVXFER_AGENT_ENGINE_RUNTIME_H_

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvxfer/backend.h"
#include "kvxfer/options.h"
#include "src/agent/engine/dispatcher.h"
#include "src/agent/engine/memory_registry.h"
#include "src/agent/engine/notifier.h"
#include "src/agent/engine/op_table.h"
#include "src/agent/engine/presence.h"
#include "src/agent/engine/progress_loop.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/kv/kv_lease_desk.h"
#include "src/agent/kv/kv_registry.h"
#include "src/agent/staging/staging.h"
#include "src/core/plan/id_pool.h"
#include "src/core/protocol/reliable_channel.h"

namespace kvxfer {

// Whoever owns an endpoint: events come here, on the engine, outside of Backend::Poll.
class EndpointUser {
 public:
  virtual ~EndpointUser() = default;
  virtual void OnEvent(Event& event) = 0;
};

// Where two agents write to each other there are two sessions, one each way. What one of them has
// to say may ride with a message of the other, in either direction: one send instead of two.
class OtherWay {
 public:
  virtual ~OtherWay() = default;

  // What this agent says as the target of a session.
  struct Rider {
    ReliableChannel* channel = nullptr;  // null: nothing
    uint64_t session = 0;
    // A connection of that session which may take along what this agent says as initiator, and when
    // something came over it; null: there is none.
    Endpoint* endpoint = nullptr;
    Time heard{};
    bool* carried = nullptr;  // of that connection: it took something along
  };
  virtual Rider RiderTo(const Incarnation& initiator) = 0;
  // A connection is lost over which was told what belongs to the session from, or to, `peer`.
  virtual void CarrierFromLost(const Incarnation& peer) = 0;
  virtual void CarrierToLost(const Incarnation& peer) = 0;
  // What `peer` says in `session` as its initiator, or as its target, over a connection of the
  // other one. An error: it broke the protocol. Sessions that are over are nobody's.
  virtual absl::Status OnCarriedFrom(const Incarnation& peer, uint64_t session,
                                     std::span<const std::byte> message) = 0;
  virtual absl::Status OnCarriedTo(const Incarnation& peer, uint64_t session,
                                   std::span<const std::byte> message) = 0;
};

// Hands over what `channel` has to send, as far as `endpoint` takes it.
void SendKept(ReliableChannel& channel, Endpoint& endpoint);

struct Runtime {
  explicit Runtime(const AgentOptions& agent_options)
      : options(agent_options),
        staging(agent_options.staging_bytes),
        notifier(&dispatcher),
        presence(&dispatcher),
        loop(agent_options.spin),
        kv(&loop, &kv_events, agent_options.kv_request_timeout),
        leases(&kv_events) {}

  // Tells the application of a transfer's end: state, callback, waiters. The end of a member tells
  // of the whole when it is the last one.
  void Publish(const TransferPtr& record, internal::TransferRecord::End end);
  // Of one that has ended, quarantined or not.
  void ClearQuarantine(const TransferPtr& record);

  OtherWay* other_way = nullptr;  // set by the engine
  Time now{};                     // when the present round, or posting, began
  const AgentOptions options;
  Incarnation incarnation;
  HostIdentity host;
  Staging staging;                                 // outlives the backends
  std::vector<std::unique_ptr<Backend>> backends;  // in order of preference
  MemoryRegistry memory;
  IdPool ids;
  // Numbers of transfers that the stager makes, apart from those of the application's; the highest
  // bit is for backends that decorate (src/backends/faulty/rail_faults.cc).
  uint64_t NextChild() { return kFirstChild | ++last_child_; }
  uint64_t revision = 0;  // of what the agent's metadata says
  OpTable ops;
  // Writes that were copied while they were posted, and whose completions nobody has asked for.
  size_t copied = 0;
  std::unordered_map<const Endpoint*, EndpointUser*> users;
  // Of staging: a peer would have one of this agent's own slots, and some were given back since.
  bool own_slot_wanted = false;
  bool own_slot_freed = false;
  // Groups of which a member has failed, and whose others are to be cancelled.
  std::vector<TransferPtr> broken_groups;
  // Endpoints (and their keys, with their users) that are finished, closed after the round.
  std::vector<std::unique_ptr<EndpointUser>> finished;

  Dispatcher dispatcher;
  Notifier notifier;
  Presence presence;
  ProgressLoop loop;
  KvEvents kv_events;
  KvRegistry kv;
  KvLeaseDesk leases;

 private:
  static constexpr uint64_t kFirstChild = uint64_t{1} << 62;
  uint64_t last_child_ = 0;
  void OnMemberEnd(const internal::TransferRecord& member,
                   const internal::TransferRecord::End& end);
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_RUNTIME_H_
