// The accepting side of a link: makes the other ends of rails, reports what comes in, makes it
// quiet.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_
#define KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/backends/libfabric/end.h"
#include "src/backends/libfabric/link.h"
#include "src/transport/fence_book.h"

namespace kvxfer::libfabric {

class AcceptedLink final : public Link {
 public:
  AcceptedLink(LibfabricBackend* backend, net::Fd control, std::string from)
      : Link(backend, std::move(control), std::move(from)) {}

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
  void SayHello() override;
  bool busy() const override;
  void PollData() override;
  bool unread() const override;

 private:
  static constexpr size_t kPollBatch = 64;
  static constexpr size_t kEverything = 1 << 20;

  struct Rail {
    std::optional<Offer> offered{};  // until Authorize
    uint32_t life = 0;
    std::unique_ptr<End> end{};
    // The first immediate of this life has come: that of the peer's probe, before which it sends no
    // other.
    bool probed = false;
    // Immediates of this life: those that have come out, of these known to the peer, and those that
    // are known to come.
    uint32_t got = kFirstCount;
    uint32_t told = kFirstCount;
    uint32_t due = kFirstCount;
  };

  absl::Status OnWord(const Frame& frame) override;
  absl::Status OnOffer(const Offer& offer);
  void Make(const Offer& offer);
  absl::Status TryMake(const Offer& offer);
  // Closes it: nothing of this life lands any more, and what has come in is reported.
  void Kill(uint32_t index);
  void Lose(uint32_t index, const absl::Status& why);
  // Reports up to `most` of what has come in, over each rail.
  void Look(size_t most);
  absl::Status LookAt(uint32_t index, size_t most);
  void OnImmediate(uint32_t index, uint32_t immediate);
  // Immediates that are known to come have not.
  bool missing() const;
  void AnswerQuiet();
  void AnswerFences(uint64_t transfer, uint32_t count);
  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  bool authorized_ = false;
  bool busy_ = false;  // the peer says so
  std::array<Rail, kMaxDomains> rails_;
  uint32_t rails_offered_ = 1;
  std::vector<uint64_t> quiet_;  // transfers of which nothing comes any more, once none is missing
  FenceBook fences_{1};
  std::map<uint64_t, Time> asked_;  // fences without an answer, and how long they are waited for
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_
