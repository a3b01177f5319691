// The connecting side of a link: offers an endpoint for each rail, probes it, posts.
//
// A rail that fails is closed at once, and built anew after ReopenRail, in growing intervals until
// an op has passed over it. A link of which no rail ever came up ends with the last attempt.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
#define KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_

#include <cstdint>
#include <deque>
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
  ~DialledLink() override;

  // --- Endpoint ---
  uint32_t rails() const override { return static_cast<uint32_t>(rails_.size()); }
  std::string Describe() const override;
  void Authorize() override {}
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  bool rail_up(uint32_t rail) const override {
    return rail < rails_.size() && rails_[rail].state == Rail::State::kUp;
  }
  RailInfo rail_info(uint32_t rail) const override;
  void ReopenRail(uint32_t index) override;
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
    enum class State : uint8_t {
      kWaiting,  // until `until`: then another attempt
      kOffered,  // the peer makes its end, once it has authorised the link
      kProbing,  // a write over it has to land, and its immediate to be heard, by `until`
      kUp,
      kFailed,  // kRailDown was said, ReopenRail not
    };
    State state = State::kWaiting;
    Time until{};
    Duration back_off{};
    bool worked = false;  // an op of this life has ended well
    bool probe_posted = false;
    bool probe_landed = false;
    uint32_t life = 0;
    std::unique_ptr<End> end{};
    uint64_t sink = 0;
    uint64_t sink_key = 0;
    // Immediates of this life: sent, and of these heard by the peer, and told it to be sent.
    uint32_t sent = kFirstCount;
    uint32_t heard = kFirstCount;
    uint32_t told = kFirstCount;
    uint32_t barrier = kFirstCount;  // none is sent before so many are heard
    absl::Status why{};              // it failed last
  };

  absl::Status OnWord(const Frame& frame) override;
  absl::Status OnHello(const Hello& hello);

  // --- dialled_rails.cc ---
  void Attempt(uint32_t index);
  absl::Status OnAnswer(const Answer& answer);
  absl::Status OnCount(const Count& count);
  void OnLost(const RailLost& lost);
  void TryProbe(uint32_t index);
  void UpIfProbed(uint32_t index);
  // `ended`: ops of it that are over, with errors.
  void FailRail(uint32_t index, const absl::Status& why, std::span<const Done> ended = {});
  void OnRailDeadline(uint32_t index, Time now);

  // --- dialled_data.cc ---
  absl::Status CheckOp(const Op& op) const;
  absl::StatusOr<bool> PostOp(const Op& op, const Flight& flight);
  absl::StatusOr<bool> PostWrite(Rail& rail, End::Request request,
                                 std::optional<uint32_t> immediate);
  absl::StatusOr<bool> PostNothing(Rail& rail, std::optional<uint32_t> immediate,
                                   const Flight& flight);
  void TakeDone(uint32_t index, std::span<const Done> done, absl::Status status);
  void OnDone(uint32_t index, const Flight& flight);
  absl::Status OwnError(const Done& done);
  void OpDone(uint32_t rail, const Flight& flight, absl::Status status);
  void FenceDone(uint64_t transfer);
  void TellCounts();
  std::vector<uint64_t> Progress() const;
  void Impatient(Time now);
  // Something is in flight, or may be at once.
  void BeBusy();
  bool InFlight() const;

  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  std::vector<Rail> rails_;
  bool ever_up_ = false;
  bool told_busy_ = false;
  Time busy_until_{};  // there was no room for an op
  struct Stopping {
    size_t ops = 0;  // of the transfer, in flight
    Time patience{};
    std::vector<uint64_t> progress{};  // of each rail, when `patience` was set
  };
  std::map<uint64_t, Stopping> stopping_;
  struct Culprit {
    uint64_t transfer = 0;
    uint64_t remote = 0;
    bool operator==(const Culprit&) const = default;
  };
  std::deque<Culprit> culprits_;  // ops that may have failed by themselves
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
