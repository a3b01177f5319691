// Transfers of many blocks, two at a time: half of what may be in flight is in each. The target's
// agent makes progress by itself and is told nothing: that a transfer is done says that the target
// has it.

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "benchmarks/ucx/side.h"
#include "kvxfer/agent.h"

namespace ucx_bench {
namespace {

constexpr std::chrono::minutes kPatience{2};

void Require(const absl::Status& status) {
  if (!status.ok()) Fail("kvxfer: " + status.ToString());
}

template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

class Agents final : public Side {
 public:
  Agents(const Setup& setup, bool initiator) : memory_(setup.memory), fd_(setup.fd) {
    kvxfer::AgentOptions options = Require(kvxfer::OptionsFromEnvironment());
    options.name = initiator ? "initiator" : "target";
    options.backends = {"ucx"};
    options.require_backends = options.backends;
    options.backend["ucx"] = {{"tls", setup.tls}, {"net_devices", setup.net_devices}};
    agent_ = Require(kvxfer::Agent::Create(options));
    Require(agent_
                ->RegisterMemory({.data = memory_.data(), .bytes = memory_.size()},
                                 kvxfer::Access::kReadWrite)
                .status());
    Tell(fd_, Require(agent_->Metadata()));
    Tell(fd_, std::to_string(reinterpret_cast<uint64_t>(memory_.data())));
    peer_ = Require(agent_->AddPeer(Hear(fd_)));
    remote_ = std::stoull(Hear(fd_));
  }

  void Write(const Round& round) override {
    const uint64_t blocks = round.volume / round.block;
    const uint64_t each = std::max<uint64_t>(1, round.in_flight / 2);
    kvxfer::Transfer before;
    for (uint64_t first = 0; first < blocks; first += each) {
      kvxfer::Transfer next = Post(round, first, std::min(each, blocks - first));
      if (first > 0) Require(before.Wait(kPatience));
      before = std::move(next);
    }
    Require(before.Wait(kPatience));
    Tell(fd_, "over");
  }

  void Serve() override { Hear(fd_); }

 private:
  kvxfer::Transfer Post(const Round& round, uint64_t first, uint64_t count) {
    const uint64_t places = round.places(memory_.size());
    const kvxfer::PagedRegion local{.base = reinterpret_cast<uint64_t>(memory_.data()),
                                    .block_bytes = round.block,
                                    .stride = round.block,
                                    .count = places};
    kvxfer::PagedRegion remote = local;
    remote.base = remote_;
    from_.clear();
    to_.clear();
    for (uint64_t i = first; i < first + count; ++i) {
      from_.push_back(static_cast<uint32_t>(Round::Source(i, places)));
      to_.push_back(static_cast<uint32_t>(Round::Target(i, places)));
    }
    return Require(agent_->Write(
        peer_,
        {.local = {&local, 1}, .remote = {&remote, 1}, .local_ids = from_, .remote_ids = to_},
        {.deadline = kPatience}));
  }

  const std::span<std::byte> memory_;
  const int fd_;
  std::unique_ptr<kvxfer::Agent> agent_;
  std::string peer_;
  uint64_t remote_ = 0;
  std::vector<uint32_t> from_;
  std::vector<uint32_t> to_;
};

}  // namespace

std::unique_ptr<Side> MakeAgentSide(const Setup& setup, bool initiator) {
  return std::make_unique<Agents>(setup, initiator);
}

}  // namespace ucx_bench
