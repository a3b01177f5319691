// The implementation behind Agent: makes its parts, and is what the driver drives
// (progress_loop.h). The parts that end in "Service" are what the application's threads call; they
// plan on the caller's thread, and have the driver do the rest.
//
// Thread-safety: the methods of Driven are the driver's; Close is called once, with no other call;
// everything else by any thread.

#ifndef KVXFER_AGENT_ENGINE_ENGINE_H_
#define KVXFER_AGENT_ENGINE_ENGINE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/agent/engine/agent_factory.h"
#include "src/agent/engine/answer_hold.h"
#include "src/agent/engine/backend_poller.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/event_service.h"
#include "src/agent/engine/memory_service.h"
#include "src/agent/engine/own_metadata.h"
#include "src/agent/engine/peer_service.h"
#include "src/agent/engine/peer_table.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/quiet_service.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_service.h"
#include "src/agent/kv/kv_service.h"
#include "src/agent/kv/kv_transfers.h"
#include "src/agent/session/inbound.h"

namespace kvxfer {

class Engine : public Driven, private Acceptor, public std::enable_shared_from_this<Engine> {
 public:
  static absl::StatusOr<std::shared_ptr<Engine>> Create(const AgentOptions& options,
                                                        internal::BackendMaker make);
  explicit Engine(const AgentOptions& options);
  ~Engine() override;

  // Ends everything. No other call may run at the same time or follow. Does nothing in a forked
  // child.
  void Close();

  const AgentOptions& options() const { return runtime_.options; }
  Incarnation incarnation() const { return runtime_.incarnation; }
  const std::string& listen_address() const { return listen_address_; }
  // See Agent.
  absl::StatusOr<std::string> Metadata() const;

  // What Agent forwards to.
  const CallGate& gate() const { return gate_; }
  PeerService& peers() { return peer_service_; }
  MemoryService& memory() { return memory_; }
  TransferService& transfers() { return transfers_; }
  KvTransfers& kv_transfers() { return kv_transfers_; }
  KvService& kv() { return kv_; }
  EventService& events() { return events_; }
  QuietService& quiet() { return quiet_; }

  // Driven.
  bool Round(uint64_t readable, Time now, Leaving leaving) override;
  bool QuickRound(Time now, Leaving leaving) override;
  void Post() override;
  bool Arm() override;
  Time NextTimer() override;

 private:
  void OnAccepted(size_t backend, std::unique_ptr<Endpoint> endpoint) override;
  absl::Status Init(internal::BackendMaker make);
  absl::Status MakeKey();
  absl::Status MakeBackends(internal::BackendMaker make);
  void CloseAll();
  bool AllClosed() const;
  void FinishRound(Time now, Leaving leaving);
  void SendAll(Time now, bool leaving);

  Runtime runtime_;
  InboundHub inbound_;
  CallGate gate_;
  PeerViews views_;
  PeerTable peers_;
  BackendPoller poller_;
  OwnMetadata own_metadata_;
  AnswerHold answer_hold_;
  std::string listen_address_;

  PeerService peer_service_;
  MemoryService memory_;
  TransferService transfers_;
  KvTransfers kv_transfers_;
  KvService kv_;
  EventService events_;
  QuietService quiet_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_ENGINE_H_
