// The accepting side of a verbs endpoint. It makes the other ends of the peer's queue pairs once
// the peer is authorised, and destroys them.
//
// Before it is authorised a peer learns which ports exist, and nothing else: its offers are kept,
// one per rail, and nothing is made or registered for it. Afterwards each offer gets one answer,
// and may be probed once.
//
// Destroying a queue pair makes it quiet: the peer no longer writes through it.
// Receive completions are polled before and after, so that no immediate is lost. If a device
// refuses to destroy a queue pair, the events that would say that it is quiet wait until it is
// destroyed: kFenced of transfers and of its rail, and kDown.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_ACCEPTED_H_
#define KVXFER_BACKENDS_VERBS_ACCEPTED_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/backends/verbs/endpoint.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/scratch.h"
#include "src/transport/fence_waits.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {

class VerbsAcceptedEndpoint final : public VerbsEndpoint {
 public:
  VerbsAcceptedEndpoint(VerbsBackend* backend, net::Fd control, std::string peer);
  ~VerbsAcceptedEndpoint() override;

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- VerbsEndpoint ---
  // Sends the list of ports, first or again after a change.
  void SayHello() override;
  void OnSetUp(uint32_t rail, absl::Status status, std::unique_ptr<QueuePair> pair) override;
  void OnDestroyed(uint32_t rail, Device& device, uint32_t number) override;

  // --- for the backend ---
  void OnImmediate(uint32_t rail, uint32_t immediate);

 private:
  struct AcceptedRail {
    std::unique_ptr<QueuePair> end;
    uint32_t life = 0;
    bool probed = false;  // the peer has asked about the probe of that life
    // Waits for Authorize, or for its queue pair, which is being made.
    std::unique_ptr<Offer> offer;
    uint64_t job = 0;        // in SetupQueue; 0: none
    bool fence_due = false;  // its kFenced waits for undestroyed_
  };
  // A queue pair that its device refuses to destroy.
  struct Undestroyed {
    uint32_t rail = 0;
    Device* device = nullptr;
    uint32_t number = 0;
  };

  void OnRailPort(const Device& device, uint8_t port, ibv_event_type type) override;
  void OnRailQueuePair(const Device& device, uint32_t number, const absl::Status& why) override;
  void OnRailDevice(const Device& device, const absl::Status& why) override;
  std::optional<Time> RailDeadline() const override { return fences_.deadline(); }
  void OnRailDeadline(Time now) override;
  absl::Status OnDecoded(Blob& blob) override;
  void EndRails(const absl::Status& why) override;
  bool RailsAreQuiet() const override { return undestroyed_.empty(); }
  absl::Status OnOffer(const Offer& offer);
  void Make(const Offer& offer);
  absl::Status TryMake(const Offer& offer);
  void Remake(uint32_t rail, const Device& device, uint8_t port);
  absl::Status OnProbe(const Probe& probe);
  void FenceTransfer(uint64_t transfer);
  void FenceRail(uint32_t rail);
  void OnQuiet(uint64_t transfer);
  void AnswerFences(uint64_t transfer, uint32_t count);
  // Destroys the rail's end: nothing is written through it afterwards, and what was written is
  // reported.
  void Kill(uint32_t rail);
  void Lose(uint32_t rail, std::string_view why);
  void Gone(Device& device, uint32_t number);
  bool IsUndestroyed(uint32_t rail) const;
  void FinishFenceRail(uint32_t rail);

  std::optional<Scratch::Slot> scratch_;  // taken with the first queue pair
  bool authorized_ = false;
  std::array<AcceptedRail, net::kMaxRails> rails_;
  uint32_t rails_offered_ = 1;
  // An initiator that is late (its process may be stopped while its device works on) loses its
  // queue pairs.
  ConfirmedFences fences_;
  std::vector<Undestroyed> undestroyed_;
  std::vector<uint64_t> fenced_;  // transfers whose kFenced waits for undestroyed_
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ACCEPTED_H_
