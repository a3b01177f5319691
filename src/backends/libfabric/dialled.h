// The connecting side of a link: offers an endpoint for each rail, probes it, posts.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
#define KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/libfabric/end.h"
#include "src/backends/libfabric/link.h"

namespace kvxfer::libfabric {

class DialledLink final : public Link {
 public:
  DialledLink(LibfabricBackend* backend, net::PeerAddress peer) : Link(backend, std::move(peer)) {}

  // --- Endpoint ---
  uint32_t rails() const override { return static_cast<uint32_t>(rails_.size()); }
  std::string Describe() const override;
  void Authorize() override {}
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  bool rail_up(uint32_t rail) const override { return rail < rails_.size() && rails_[rail].up; }
  RailInfo rail_info(uint32_t rail) const override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- Link ---
  void SayHello() override {}
  bool busy() const override { return up() && told_busy_; }
  void PollData() override;
  void Rest() override;
  bool unread() const override;

 private:
  struct Rail {
    std::unique_ptr<End> end{};
    uint64_t sink = 0;
    uint64_t sink_key = 0;
    std::optional<Time> probe_by{};  // the other end is there; a write over it has to end by then
    bool probing = false;            // that write is on its way
    bool up = false;
  };

  absl::Status OnWord(const Frame& frame) override;
  absl::Status OnHello(const Hello& hello);
  absl::Status OnAnswer(const Answer& answer);
  void TryProbe(uint32_t rail);
  absl::Status CheckOp(const Op& op) const;
  absl::StatusOr<bool> PostOp(const Op& op);
  absl::StatusOr<bool> PostNothing(Rail& rail, std::optional<uint32_t> immediate,
                                   const Flight& flight);
  void OnDone(uint32_t rail, const Done& done);
  void OpDone(uint32_t rail, const Flight& flight, absl::Status status);
  void FenceDone(uint64_t transfer);
  // Something is in flight, or may be at once.
  void BeBusy();
  bool InFlight() const;
  bool Probing() const;

  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  std::vector<Rail> rails_;
  bool told_busy_ = false;
  Time busy_until_{};       // there was no room for an op
  absl::Status failure_{};  // the first one, for which the link ends
  struct Stopping {
    size_t ops = 0;  // of the transfer, in flight
    Time patience{};
  };
  std::map<uint64_t, Stopping> stopping_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
