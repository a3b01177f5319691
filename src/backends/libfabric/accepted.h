// The accepting side of an endpoint: opens the other ends of rails, reports received immediates,
// and makes transfers and rails quiet.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_
#define KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/backends/libfabric/end.h"
#include "src/backends/libfabric/endpoint.h"
#include "src/transport/fence_waits.h"

namespace kvxfer::libfabric {

class LibfabricAcceptedEndpoint final : public LibfabricEndpoint {
 public:
  LibfabricAcceptedEndpoint(LibfabricBackend* backend, net::Fd control, std::string from);

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- LibfabricEndpoint ---
  void SayHello() override;
  bool busy() const override;
  void PollData() override;
  bool unread() const override;

 private:
  static constexpr size_t kPollBatch = 64;
  static constexpr size_t kEverything = 1 << 20;

  struct AcceptedRail {
    std::optional<Offer> offered{};  // before Authorize: what the peer offered
    uint32_t life = 0;
    std::unique_ptr<End> end{};
    // The first immediate of this life has arrived. It is that of the peer's probe; the peer sends
    // no other before it.
    bool probed = false;
    // Immediates of this life: read from the completion queue; of these, reported to the peer;
    // announced by the peer as sent.
    uint32_t got = kFirstCount;
    uint32_t reported = kFirstCount;
    uint32_t due = kFirstCount;
  };

  void FenceTransfer(uint64_t transfer);
  void FenceRail(uint32_t rail);
  absl::Status OnDecoded(const Frame& frame) override;
  absl::Status OnOffer(const Offer& offer);
  void Make(const Offer& offer);
  absl::Status TryMake(const Offer& offer);
  // Closes the rail's end, after reporting everything received: nothing more of this life is
  // written.
  void Kill(uint32_t index);
  // Closes the rail's end and tells the peer why.
  void Lose(uint32_t index, const absl::Status& why);
  // Reads up to `most` entries of each rail's completion queue and reports the immediates.
  void Look(size_t most);
  absl::Status LookAt(uint32_t index, size_t most);
  void OnImmediate(uint32_t index, uint32_t immediate);
  // Immediates that the peer announced have not arrived yet.
  bool missing() const;
  // Sends kFenced for the transfers in quiet_, unless an announced immediate is missing.
  void AnswerQuiet();
  void AnswerFences(uint64_t transfer, uint32_t count);
  std::optional<Time> DataDeadline() const override { return fences_.deadline(); }
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  bool authorized_ = false;
  bool busy_ = false;  // the peer sent Busy, and no Idle since
  // One for each domain here; the peer may offer fewer.
  std::vector<AcceptedRail> rails_;
  // Transfers of which nothing more is written, to be answered once no immediate is missing.
  std::vector<uint64_t> quiet_;
  ConfirmedFences fences_;  // an initiator that is late loses its rails
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_
