// Many peers and many transfers over the libfabric backend: none costs more than the last.

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/conformance/backend_conformance.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"

namespace kvxfer::testing {
namespace {

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(::getpagesize());
}

class LibfabricScale : public BackendConformance {
 protected:
  // So many links between two backends, one write over each.
  void ManyLinks(size_t count) {
    ASSERT_NO_FATAL_FAILURE(Start(count * kBytes));
    Pattern(1).Fill(local_->bytes());
    const uint64_t before = ResidentBytes();
    const Time start = Now();
    ASSERT_NO_FATAL_FAILURE(ConnectUpTo(count));
    const Time connected = Now();
    const uint64_t bytes = (ResidentBytes() - before) / (count - 1);
    ASSERT_NO_FATAL_FAILURE(WriteOverAll());
    std::printf("%zu links: connected in %.0f ms, written over in %.0f ms, %.1f KiB each\n", count,
                Milliseconds(connected - start), Milliseconds(Now() - connected),
                static_cast<double>(bytes) / 1024);
    if (!kSanitized) {
      EXPECT_LE(bytes, kMostBytesOfALink);
    }
    EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes()), kNoMismatch);
  }

  void TransfersInTurn(size_t count) {
    const Shape shape{.block_bytes = 64, .ids = 2};
    ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
    Pattern(2).Fill(pair.a.memory.bytes());
    const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
    uint64_t before = 0;
    for (size_t i = 0; i < count; i += kAtOnce) {
      std::vector<Transfer> posted;
      for (size_t j = 0; j < kAtOnce; ++j) {
        ASSERT_OK_AND_ASSIGN(Transfer transfer, blocks.Write(*pair.a.agent, "b"));
        posted.push_back(std::move(transfer));
      }
      for (const Transfer& transfer : posted) ASSERT_OK(transfer.Wait(kAmple));
      if (i < count / 4) before = ResidentBytes();
    }
    const uint64_t after = ResidentBytes();
    std::printf("%zu transfers: %.1f MiB after a quarter of them, %.1f MiB in the end\n", count,
                static_cast<double>(before) / (1 << 20), static_cast<double>(after) / (1 << 20));
    if (!kSanitized) {
      EXPECT_LE(after, before + (2u << 20));
    }
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 2, pair.b.memory.bytes()));
  }

 private:
  static constexpr uint64_t kBytes = 64;
  static constexpr uint64_t kMostBytesOfALink = 128 * 1024;
  static constexpr size_t kAtOnce = 64;

  // Some at a time, as peers come; those that are up rest.
  void ConnectUpTo(size_t count) {
    auto& made = pair_->initiator().links;
    auto& accepted = pair_->target().links;
    while (made.size() < count) {
      const size_t first = made.size();
      const size_t some = std::min(first + kAtOnce, count);
      while (made.size() < some) ASSERT_OK(pair_->initiator().Connect(pair_->target()));
      ASSERT_TRUE(pair_->Until([&] { return accepted.size() == some; }));
      for (size_t i = first; i < some; ++i) accepted[i]->endpoint->Authorize();
      const auto is_up = [](const auto& link) {
        return link->down || (link->connected && link->rail_up(0));
      };
      ASSERT_TRUE(pair_->Until([&] {
        return std::all_of(made.begin() + static_cast<ptrdiff_t>(first), made.end(), is_up);
      })) << made.back()->path();
      ASSERT_TRUE(pair_->Until([&] { return pair_->initiator().backend().Arm(); }));
    }
  }

  void WriteOverAll() {
    auto& made = pair_->initiator().links;
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_OK_AND_ASSIGN(
          auto key, made[i]->endpoint->Import(remote_->remote(), remote_->registration->key));
      const Op op = made[i]->Make(OpKind::kWrite, 1,
                                  {{.local = local_->address() + i * kBytes,
                                    .remote = remote_->address() + i * kBytes,
                                    .bytes = kBytes,
                                    .registration = local_->registration.get(),
                                    .key = key.get()}},
                                  static_cast<uint32_t>(i));
      made[i]->keys.push_back(std::move(key));
      ASSERT_TRUE(pair_->Until([&] { return made[i]->Post({&op, 1}) == 1; }));
    }
    const auto ended = [](const auto& link) { return link->open.empty() && link->failed() == 0; };
    ASSERT_TRUE(pair_->Until([&] { return std::ranges::all_of(made, ended); }, kAmple));
    const auto arrived = [](const auto& link) { return link->immediates.size() == 1; };
    ASSERT_TRUE(
        pair_->Until([&] { return std::ranges::all_of(pair_->target().links, arrived); }, kAmple));
  }
};
// The entries of ctest say over what; see tests/fabric/fabric.cmake.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibfabricScale);
INSTANTIATE_TEST_SUITE_P(Many, LibfabricScale, ::testing::ValuesIn(LibfabricFlavours()),
                         FlavourName);

// Over net each endpoint has sockets of its own.
TEST_P(LibfabricScale, FourThousandLinks) {
  ManyLinks(static_cast<size_t>(Scaled(GetParam().provider == "net" ? 64 : 4096)));
}
TEST_P(LibfabricScale, TransfersLeaveNothingBehind) {
  TransfersInTurn(static_cast<size_t>(Scaled(1 << 14)));
}
TEST_P(LibfabricScale, SoakAMillionTransfersLeaveNothingBehind) { TransfersInTurn(1 << 20); }

}  // namespace
}  // namespace kvxfer::testing
