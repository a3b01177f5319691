// Several initiators with more to move than the target takes: each has its share of the target's
// turns, counted in bytes that landed and not in time.
#include <optional>

#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

constexpr size_t kPeers = 5;
constexpr size_t kOpBytes = 64 * 1024;

// An initiator whose immediates say who it is.
class Peer {
 public:
  Peer(Node& target, uint32_t number) : number_(number), target_(target) {
    source_registration_ = node_.Register(source_.data(), source_.size(), 1, Access::kNone);
    sink_registration_ =
        target.Register(sink_.data(), sink_.size(), 100 + number, Access::kRemoteWrite);
    auto endpoint = node_.backend->Connect(target.backend->Describe().address, ThisHost());
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }

  bool Up() {
    const size_t accepted = target_.accepted.size();
    if (!Drive({&node_, &target_},
               [&] { return node_.connected == 1 && target_.accepted.size() == accepted + 1; })) {
      return false;
    }
    target_.accepted.back()->Authorize();
    key_ = *endpoint_->Import({.rkey = 100 + number_}, "");
    rails_ = endpoint_->Describe().rails.size();
    blocks_.emplace(std::vector<OpRun>{{.local = reinterpret_cast<uint64_t>(source_.data()),
                                        .remote = reinterpret_cast<uint64_t>(sink_.data()),
                                        .bytes = kOpBytes,
                                        .registration = source_registration_.get(),
                                        .key = key_.get()}});
    return true;
  }

  // As much as there is room for, on each rail in turn.
  void Post() {
    while (true) {
      const Op op{.has_immediate = true,
                  .rail = static_cast<uint32_t>(ops_ % rails_),
                  .immediate = number_,
                  .id = ops_ + 1,
                  .transfer = 1,
                  .blocks = blocks_->range()};
      if (!endpoint_->Post(op)) return;
      ++ops_;
    }
  }
  void Poll() { node_.Poll(); }

 private:
  const uint32_t number_;
  Node& target_;
  Node node_;
  std::vector<std::byte> source_{kOpBytes};
  std::vector<std::byte> sink_{kOpBytes};
  std::unique_ptr<Registration> source_registration_;
  std::unique_ptr<Registration> sink_registration_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<RemoteKey> key_;
  std::optional<testing::RunBlocks> blocks_;
  size_t rails_ = 0;
  uint64_t ops_ = 0;
};

// `max`: events that one Poll of the target may report, each the end of kOpBytes.
void ExpectEqualShares(size_t max) {
  Node target;
  std::vector<std::unique_ptr<Peer>> peers;
  for (uint32_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>(target, i));
    ASSERT_TRUE(peers.back()->Up());
  }
  for (int turn = 0; target.immediates.size() < 2000; ++turn) {
    ASSERT_LT(turn, 100'000);
    for (const auto& peer : peers) {
      peer->Post();
      peer->Poll();
    }
    target.Poll(max);
  }
  std::vector<size_t> shares(kPeers);
  for (uint32_t number : target.immediates) ++shares[number];
  const auto [least, most] = std::ranges::minmax(shares);
  EXPECT_GE(static_cast<double>(least), 0.7 * static_cast<double>(most))
      << ::testing::PrintToString(shares);
}

TEST(TcpFairness, EachPeerHasItsShareOfTheBytes) { ExpectEqualShares(64); }

// Expect that who was passed over, for the events were used up, begins another time.
TEST(TcpFairness, EachPeerHasItsShareOfFewEvents) { ExpectEqualShares(2); }

}  // namespace
}  // namespace kvxfer::tcp_test
