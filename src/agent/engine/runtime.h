// What the parts of the engine share: options, identity, backends, memory, ops in flight, and the
// ways to the application. Engine owns it; the parts hold a pointer to it.
//
// Thread-safety: used by the driver only, except members that say otherwise.

#ifndef KVXFER_AGENT_ENGINE_RUNTIME_H_
#define KVXFER_AGENT_ENGINE_RUNTIME_H_

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvxfer/backend.h"
#include "kvxfer/options.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/dispatcher.h"
#include "src/agent/engine/event_queue.h"
#include "src/agent/engine/memory_registry.h"
#include "src/agent/engine/op_table.h"
#include "src/agent/engine/presence.h"
#include "src/agent/engine/progress_loop.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/kv/kv_registry.h"
#include "src/agent/kv/lease_service.h"
#include "src/agent/staging/staging.h"
#include "src/core/base/ready_list.h"
#include "src/core/base/signing_key.h"
#include "src/core/base/timer_heap.h"
#include "src/core/plan/id_pool.h"
#include "src/core/protocol/handshake.h"

namespace kvxfer {

// The user of an endpoint. The driver passes it the endpoint's events, never from inside
// Backend::Poll.
class EndpointUser {
 public:
  virtual ~EndpointUser() = default;
  virtual void OnEvent(Event& event) = 0;
};

struct Runtime {
  explicit Runtime(const AgentOptions& agent_options)
      : options(agent_options),
        staging(agent_options.staging_bytes, agent_options.copy_sms),
        loop(agent_options.spin),
        events(&dispatcher, &loop),
        presence(&events),
        kv(&loop, &events, agent_options.kv_request_timeout),
        leases(&events) {}

  // This agent's side of a new connection over a backend, named by its place in `backends`.
  Handshake::Side NewSide(size_t backend) const;

  // Publishes the end of a transfer: state, callback, event, waiters. The end of a group's last
  // member also publishes the end of the group.
  void Publish(const TransferPtr& record, internal::TransferRecord::End&& end);
  // The transfer must have ended; it need not be quarantined.
  void ClearQuarantine(const TransferPtr& record);

  // The initiator's CPU or GPU copies what goes over `backend`: once an op completes, its bytes are
  // visible.
  bool CopiesItself(size_t backend) const {
    return backends[backend]->capabilities().arrival == Arrival::kCopied;
  }

  // The links of `backend` carry control frames, as AgentOptions::control has it.
  bool Carries(size_t backend) const {
    return options.control == ControlCarrier::kAuto ||
           options.control == backends[backend]->capabilities().carrier;
  }

  Time now{};  // when the current round, or posting, began
  // What has something to do: now, as an initiator or as a target, or at a time.
  ReadyList peers;     // of Peer
  ReadyList sessions;  // of InboundSession
  TimerHeap timers;
  const AgentOptions options;
  std::optional<SigningKey> key;  // set by the engine
  Incarnation incarnation;        // of the key
  HostIdentity host;
  Staging staging;                                 // outlives the backends
  std::vector<std::unique_ptr<Backend>> backends;  // in order of preference
  // Those of the default list that this host cannot use, and why.
  std::vector<PathExplanation> unusable;
  MemoryRegistry memory;
  IdPool ids;
  // The id of the next transfer that the stager makes, in a number space apart from the
  // application's transfers. Decorating backends use the highest bit
  // (src/backends/faulty/rail_faults.cc).
  uint64_t NextChild() { return kFirstChild | ++last_child_; }
  uint64_t revision = 0;  // of the agent's metadata; each change of what it lists increments it
  OpTable ops;
  std::unordered_map<const Endpoint*, EndpointUser*> users;
  // A Peer wanted one of this agent's own staging buffers and there was none; and since then one
  // was returned.
  bool own_buffer_wanted = false;
  bool own_buffer_freed = false;
  // An answer of the application is expected: what only answers the peer waits for it, until the
  // next round or post, which the background thread begins if nobody else does.
  bool answers_wait = false;
  // Groups of which a member has failed. Their other members must be cancelled.
  std::vector<TransferPtr> broken_groups;
  // Endpoints that are finished, with their keys and users. They are destroyed after the round.
  std::vector<std::unique_ptr<EndpointUser>> finished;

  Dispatcher dispatcher;
  ProgressLoop loop;
  EventQueue events;
  Presence presence;
  KvRegistry kv;
  LeaseService leases;

 private:
  static constexpr uint64_t kFirstChild = uint64_t{1} << 62;
  uint64_t last_child_ = 0;
  void OnMemberEnd(const internal::TransferRecord& member,
                   const internal::TransferRecord::End& end);
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_RUNTIME_H_
