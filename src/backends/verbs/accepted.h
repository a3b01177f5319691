// The accepting side of a link: makes the other ends of the peer's queue pairs, once the peer is
// authorised, and ends them.
//
// Until it is authorised a peer learns which ports there are, and no more: its offers are kept, one
// a rail, and nothing is made or registered for it. Afterwards each offer has one answer, and may
// be probed once.
//
// Destroying a queue pair is what makes it quiet: nothing of the peer's lands through it any more.
// Receive completions are taken before and after, so that no immediate is lost. Where a device
// refuses to destroy one, what says that it is quiet waits until it has: kFenced, kDown, and
// kRailFenced of that rail.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_ACCEPTED_H_
#define KVXFER_BACKENDS_VERBS_ACCEPTED_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/backends/verbs/link.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/scratch.h"
#include "src/transport/fence_book.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {

class AcceptedLink final : public Link {
 public:
  AcceptedLink(VerbsBackend* backend, net::Fd control, std::string peer);
  ~AcceptedLink() override;

  // --- Endpoint ---
  uint32_t rails() const override { return rails_offered_; }
  std::string Describe() const override;
  void Authorize() override;
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  void FenceRail(uint32_t rail) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- Link ---
  // Which ports there are, or have changed.
  void SayHello() override;
  void OnPort(const Device& device, uint8_t port, ibv_event_type type) override;
  void OnQueuePair(const Device& device, uint32_t number, const absl::Status& why) override;
  void OnBroken(const Device& device, const absl::Status& why) override;
  void OnSetUp(uint32_t rail, absl::Status status, std::unique_ptr<QueuePair> pair) override;
  void OnDestroyed(uint32_t rail, Device& device, uint32_t number) override;

  // --- for the backend ---
  void OnImmediate(uint32_t rail, uint32_t immediate);

 private:
  struct Rail {
    std::unique_ptr<QueuePair> end;
    uint32_t life = 0;
    bool probed = false;         // that life was asked about
    std::optional<Offer> offer;  // that waits for Authorize, or for its end, which is being made
    uint64_t job = 0;            // of SetupQueue; 0: none
    bool fence_due = false;      // kRailFenced waits for `undying_`
  };
  // A queue pair that its device refuses to destroy.
  struct Undying {
    uint32_t rail = 0;
    Device* device = nullptr;
    uint32_t number = 0;
  };

  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  absl::Status OnBlob(Blob& blob) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return undying_.empty(); }
  absl::Status OnOffer(const Offer& offer);
  void Make(const Offer& offer);
  absl::Status TryMake(const Offer& offer);
  void Remake(uint32_t rail, const Device& device, uint8_t port);
  absl::Status OnProbe(const Probe& probe);
  void OnQuiet(uint64_t transfer);
  void AnswerFences(uint64_t transfer, uint32_t count);
  // Nothing lands through that rail any more, and what landed is reported.
  void Kill(uint32_t rail);
  void Lose(uint32_t rail, std::string_view why);
  void Gone(Device& device, uint32_t number);
  bool IsUndying(uint32_t rail) const;
  void FinishFenceRail(uint32_t rail);

  std::optional<Scratch::Slot> scratch_;  // from the first queue pair on
  bool authorized_ = false;
  std::array<Rail, net::kMaxRails> rails_;
  uint32_t rails_offered_ = 1;
  FenceBook fences_{1};
  std::map<uint64_t, Time> asked_;  // fences without an answer, and how long they are waited for
  std::vector<Undying> undying_;
  std::vector<uint64_t> fenced_;  // kFenced that wait for `undying_`
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ACCEPTED_H_
