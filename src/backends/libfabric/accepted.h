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
#include "src/core/fence_book.h"

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
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- Link ---
  void SayHello() override;
  bool busy() const override { return busy_ && up(); }
  void PollData() override { Look(kPollBatch); }
  bool unread() const override;

 private:
  static constexpr size_t kPollBatch = 64;
  static constexpr size_t kEverything = 1 << 20;

  struct Rail {
    std::optional<std::string> offered{};  // the peer's endpoint, until Authorize
    std::unique_ptr<End> end{};
  };

  absl::Status OnWord(const Frame& frame) override;
  absl::Status OnOffer(const Offer& offer);
  void Make(uint32_t rail);
  absl::Status TryMake(uint32_t rail);
  // Reports up to `most` of what has come in over each rail.
  void Look(size_t most);
  void AnswerFences(uint64_t transfer, uint32_t count);
  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  bool authorized_ = false;
  bool busy_ = false;  // the peer says so
  std::array<Rail, kMaxDomains> rails_;
  uint32_t rails_offered_ = 1;
  FenceBook fences_{1};
  std::map<uint64_t, Time> asked_;  // fences without an answer, and how long they are waited for
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_ACCEPTED_H_
