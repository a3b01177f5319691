// Data streams in the hands of data threads.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

constexpr uint32_t kLentRails = 3;
constexpr size_t kLentOps = 48;
constexpr size_t kLentBytes = 256 * 1024;

AgentOptions WithDataThreads(uint32_t count) {
  AgentOptions options = Streams(kLentRails);
  options.backend["tcp"]["data_threads"] = std::to_string(count);
  return options;
}

class TcpDataThreads : public TcpPair {
 protected:
  // Two threads for three rails; each op moves its own part of the memory.
  void UpWithOps(OpKind kind = OpKind::kWrite) {
    Up(kLentOps * kLentBytes, WithDataThreads(2));
    for (size_t i = 0; i < kLentOps; ++i) {
      ops.push_back({.kind = kind,
                     .has_immediate = kind == OpKind::kWrite,
                     .rail = static_cast<uint32_t>(i % kLentRails),
                     .immediate = static_cast<uint32_t>(i),
                     .id = i + 1,
                     .transfer = 5,
                     .blocks = Blocks({RunAt(i * kLentBytes, i * kLentBytes, kLentBytes)})});
    }
    // Rails are lent in the Poll after the authorisation.
    ASSERT_TRUE(
        Drive({a.get(), b.get()}, [&] { return Lent(*endpoint) && Lent(*b->accepted[0]); }));
  }

  static bool Lent(const Endpoint& endpoint) {
    return endpoint.Describe().path.find("data threads") != std::string::npos;
  }

  // Tiny writes over the first rail into places side by side, each with an immediate, from 0.
  std::vector<Op> TinyWrites(size_t count) {
    std::vector<Op> out;
    for (size_t i = 0; i < count; ++i) {
      out.push_back({.has_immediate = true,
                     .immediate = static_cast<uint32_t>(i),
                     .id = i + 1,
                     .transfer = 6,
                     .blocks = Blocks({RunAt(0, 8 * i, 8)})});
    }
    return out;
  }

  // Whether nobody writes to the sink for a while in which `a` goes on.
  bool SinkIsLeftAlone() {
    const std::vector<std::byte> before = sink;
    for (int i = 0; i < 20; ++i) {
      a->Poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return before == sink;
  }

  std::vector<Op> ops;
};

TEST_F(TcpDataThreads, MoveWritesAndReads) {
  ASSERT_NO_FATAL_FAILURE(UpWithOps());
  ASSERT_TRUE(PostAll(ops));
  ASSERT_TRUE(Settle(kLentOps));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == kLentOps; }));
  EXPECT_EQ(sink, source);
  for (const auto& [id, status] : a->completions) EXPECT_OK(status) << id;
  // Back into other places: the last part of the sink becomes the first of the source.
  const std::vector<std::byte> wanted(sink.end() - kLentBytes, sink.end());
  const Op read{.kind = OpKind::kRead,
                .rail = 1,
                .id = 1000,
                .transfer = 7,
                .blocks = Blocks({RunAt(0, (kLentOps - 1) * kLentBytes, kLentBytes)})};
  ASSERT_TRUE(PostAll({read}));
  ASSERT_TRUE(Settle(kLentOps + 1));
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), source.begin()));
}

TEST_F(TcpDataThreads, AreNotThereUnlessAskedFor) {
  Up(4096, WithDataThreads(0));
  for (int i = 0; i < 20; ++i) {
    a->Poll();
    b->Poll();
  }
  EXPECT_FALSE(Lent(*endpoint)) << endpoint->Describe().path;
  EXPECT_FALSE(Lent(*b->accepted[0]));
}

// A peer cannot make a thread collect events without end while its driver does something else.
TEST_F(TcpDataThreads, StopWhereNobodyTakesTheirEvents) {
  ASSERT_NO_FATAL_FAILURE(UpWithOps());
  const std::vector<Op> tiny = TinyWrites(5000);
  size_t posted = 0;
  ASSERT_TRUE(Drive({a.get()}, [&] {
    posted += PostSome(std::span(tiny).subspan(posted));
    return posted == tiny.size() && a->completions.size() == tiny.size();
  }));
  // The rest waits in the target's socket: 1,024 events are the most that a thread makes. Nothing
  // tells this thread what that one has written, which the sanitizer would not bear.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!testing::kThreadSanitizer) {
    size_t written = 0;
    while (written < tiny.size() && sink[8 * written + 7] == source[7]) ++written;
    EXPECT_GT(written, 0u);
    EXPECT_LE(written, 1024u);
  }
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->immediates.size() == tiny.size(); }));
  std::vector<uint32_t> in_order(tiny.size());
  std::iota(in_order.begin(), in_order.end(), 0u);
  EXPECT_EQ(b->immediates, in_order);
}

// From the call on no byte of the transfer is written, as without threads.
TEST_F(TcpDataThreads, WriteNothingOfAFencedTransfer) {
  for (int round = 0; round < testing::Scaled(20); ++round) {
    ops.clear();
    ASSERT_NO_FATAL_FAILURE(UpWithOps());
    size_t posted = 0;
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] {
      posted += PostSome(std::span<const Op>(ops).subspan(posted));
      return !b->immediates.empty();
    }));
    b->accepted[0]->Fence({.transfer = 5});
    EXPECT_TRUE(SinkIsLeftAlone()) << round;
    // The initiator's markers end the fence, and the rails go on with other transfers.
    endpoint->Fence({.transfer = 5});
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->fenced.size() == 1; }));
    const size_t before = b->immediates.size();
    ASSERT_TRUE(PostAll({{.has_immediate = true,
                          .rail = 2,
                          .immediate = 77,
                          .id = 2000,
                          .transfer = 8,
                          .blocks = Blocks({RunAt(8, 0, 8)})}}));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() > before; }));
    EXPECT_EQ(b->immediates.back(), 77u);
    EXPECT_TRUE(std::equal(sink.begin(), sink.begin() + 8, source.begin() + 8));
  }
}

// The same of a region, and of an endpoint that is destroyed: its memory may go with it.
TEST_F(TcpDataThreads, WriteNothingIntoAClosedRegion) {
  for (int round = 0; round < testing::Scaled(20); ++round) {
    ops.clear();
    ASSERT_NO_FATAL_FAILURE(UpWithOps());
    size_t posted = 0;
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] {
      posted += PostSome(std::span<const Op>(ops).subspan(posted));
      return !b->immediates.empty();
    }));
    if (round % 2 == 0) {
      sink_registration.reset();
    } else {
      b->accepted.clear();
    }
    EXPECT_TRUE(SinkIsLeftAlone()) << round;
    // Every op ends: with an error, or because it had come before.
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return a->completions.size() == posted; }));
  }
}

TEST_F(TcpDataThreads, GoWithTheirBackend) {
  for (int round = 0; round < testing::Scaled(20); ++round) {
    ops.clear();
    ASSERT_NO_FATAL_FAILURE(UpWithOps());
    PostSome(ops);
    // In either order, with ops in flight and events that nobody took.
    if (round % 2 == 0) a.reset();
    b.reset();
    endpoint.reset();
    key.reset();
    source_registration.reset();
    sink_registration.reset();
  }
}

}  // namespace
}  // namespace kvxfer::tcp_test
