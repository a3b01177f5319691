// Layers of prepared blocks: they take the same bytes to the same places as writes that are not
// prepared, by any number of threads, and fail by name once what was prepared is not there any
// more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_memory.h"

namespace kvxfer::testing {
namespace {

const KvModel kLayered{.layers = 6, .heads = 4, .k_size = 16, .v_size = 16};
const CacheName kCache("kv");

struct LayerCase {
  KvShape src;
  KvShape dst;
  KvPlace from;
  KvPlace to;
};

// Unlike tensor and pipeline parallelism, block sizes and layouts; tokens that begin and end within
// blocks, ids in no order.
std::vector<LayerCase> LayerCases() {
  std::vector<LayerCase> cases = {
      {{.tp = 4},
       {.tp = 2, .block_tokens = 32},
       {.ids = {5, 0, 3}, .first_token = 3, .tokens = 40},
       {.ids = {7, 2}, .first_token = 20, .tokens = 40}},
      {{.tp = 1, .form = Form::kTwo, .order = "2BNH"},
       {.tp = 2, .pp = 2, .form = Form::kApart, .order = "LBHN"},
       {.ids = {5, 0, 3}, .first_token = 5, .tokens = 39},
       {.ids = {6, 1, 4}, .first_token = 9, .tokens = 39}},
      {{.tp = 2, .pp = 3, .order = "LBHN"},
       {.tp = 1, .order = "LBHN"},
       {.ids = {1, 4, 6}, .tokens = 48},
       {.ids = {2, 0, 7}, .tokens = 48}},
  };
  if (kSlow) cases = {cases[0]};
  return cases;
}

KvBlocks BlocksFor(const KvPlace& local, const KvPlace& remote) {
  return {.cache = kCache,
          .local_ids = local.ids,
          .remote_ids = remote.ids,
          .local_first_token = local.first_token,
          .remote_first_token = remote.first_token,
          .tokens = local.tokens};
}

KvOptions OfRequest(const std::string& name) {
  return {.request = RequestName(name), .transfer = {.deadline = kAmple}};
}

class AgentKvLayers : public ::testing::TestWithParam<Flavour> {};

// Each rank's layers in pieces of one and two, by two threads that share what is prepared.
void WriteFromTwoThreads(Agent& agent, const PreparedBlocks& blocks, const KvOptions& options) {
  const auto write = [&](uint32_t first, uint32_t layers) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         agent.WriteLayers(blocks, first, layers, options));
    EXPECT_OK(transfer.Wait(kAmple));
  };
  std::thread other([&] {
    write(3, 1);
    write(4, kAllLayers);
  });
  write(0, 1);
  write(1, 2);
  other.join();
}

TEST_P(AgentKvLayers, WritesBetweenUnlikeInstances) {
  for (const LayerCase& c : LayerCases()) {
    ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kLayered, c.src));
    ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kLayered, c.dst));
    ASSERT_OK(Introduce(prefill, decode));
    // The same blocks serve more than one request.
    for (uint8_t salt = 1; salt <= 2; ++salt) {
      const std::string name = "request " + std::to_string(salt);
      for (const auto& rank : prefill.ranks) {
        rank->Fill(c.from, salt);
        ASSERT_OK_AND_ASSIGN(const PreparedBlocks blocks,
                             rank->agent().PrepareBlocks(decode.names, BlocksFor(c.from, c.to)));
        WriteFromTwoThreads(rank->agent(), blocks, OfRequest(name));
      }
      for (const auto& rank : decode.ranks) {
        ASSERT_OK_AND_ASSIGN(const Notification told, rank->agent().WaitNotification(kAmple));
        EXPECT_EQ(told.request, RequestName(name));
        EXPECT_TRUE(rank->Holds(c.to, salt));
        EXPECT_FALSE(rank->agent().PollNotification().has_value());
      }
    }
    if (HasFailure()) return;
  }
}

// One rank of prefill and two of decode, which hold what was prepared.
class PreparedPair {
 public:
  explicit PreparedPair(const Flavour& flavour) : flavour_(flavour) {}

  absl::Status Make() {
    auto made = KvNodes::Create(flavour_, "p", kLayered, {.tp = 1});
    if (!made.ok()) return made.status();
    prefill = *std::move(made);
    if (absl::Status status = MakeDecode(); !status.ok()) return status;
    source().Fill(from, 1);
    return Prepare();
  }
  absl::Status MakeDecode() {
    auto made = KvNodes::Create(flavour_, "d", kLayered, {.tp = 2});
    if (!made.ok()) return made.status();
    decode = *std::move(made);
    return Introduce(prefill, decode);
  }
  absl::Status Prepare() {
    auto prepared = source().agent().PrepareBlocks(decode.names, BlocksFor(from, to));
    if (prepared.ok()) blocks = *std::move(prepared);
    return prepared.status();
  }
  absl::StatusOr<Transfer> Write(uint32_t layer, const KvOptions& options = OfRequest("r")) {
    return source().agent().WriteLayers(blocks, layer, 1, options);
  }
  KvNode& source() { return *prefill.ranks[0]; }

  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 4, 2}, .tokens = 48};
  KvNodes prefill;
  KvNodes decode;
  PreparedBlocks blocks;

 private:
  const Flavour flavour_;
};

TEST_P(AgentKvLayers, APeerThatRestartsIsNamed) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  ASSERT_OK_AND_ASSIGN(const Transfer first, pair.Write(0));
  ASSERT_OK(first.Wait(kAmple));
  for (const auto& rank : pair.decode.ranks) rank->Kill();
  ASSERT_OK(pair.MakeDecode());
  EXPECT_TRUE(Fails(pair.Write(1), absl::StatusCode::kFailedPrecondition,
                    {"peer d-0", "incarnation", "prepare them again"}));
  // Nothing is written into the new ones but what is prepared for them.
  ASSERT_OK(pair.Prepare());
  ASSERT_OK_AND_ASSIGN(const Transfer second, pair.Write(1, OfRequest("again")));
  EXPECT_OK(second.Wait(kAmple));
  for (const auto& rank : pair.decode.ranks) EXPECT_TRUE(rank->Holds(pair.to, 1, 1, 1));
}

TEST_P(AgentKvLayers, ACacheThatIsGoneIsNotWrittenInto) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  ASSERT_OK_AND_ASSIGN(const Transfer first, pair.Write(0));
  ASSERT_OK(first.Wait(kAmple));
  // The owner has not said so yet: it refuses the layer.
  Agent& owner = pair.decode.ranks[1]->agent();
  ASSERT_OK(owner.DeregisterKvCache(kCache));
  ASSERT_OK(pair.decode.ranks[1]->DeregisterMemory());
  ASSERT_OK_AND_ASSIGN(const Transfer refused, pair.Write(1));
  EXPECT_FALSE(refused.Wait(kAmple).ok());
  EXPECT_NE(refused.Poll(), TransferState::kDone);
  EXPECT_TRUE(pair.decode.ranks[1]->Holds(pair.to, 1, 0, 1)) << "only the first layer";
  // Now it has.
  ASSERT_OK(Introduce(pair.source().agent(), owner));
  EXPECT_TRUE(Fails(pair.Write(2), absl::StatusCode::kNotFound, {"peer d-1", "\"kv\""}));
}

TEST_P(AgentKvLayers, MemoryThatIsDeregisteredIsNotRead) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  ASSERT_OK_AND_ASSIGN(const Transfer first, pair.Write(0));
  ASSERT_OK(first.Wait(kAmple));
  ASSERT_OK(pair.source().agent().DeregisterKvCache(kCache));
  EXPECT_TRUE(Fails(pair.Write(1), absl::StatusCode::kNotFound, {"this agent", "\"kv\""}));
  // The blocks hold nothing that would keep the memory.
  ASSERT_OK(pair.source().DeregisterMemory());
  EXPECT_TRUE(Fails(pair.Write(1), absl::StatusCode::kNotFound, {"this agent", "\"kv\""}));
}

// Regions that come between layers have other places in the tables of both sides.
TEST_P(AgentKvLayers, OtherMemoryMayComeBetweenLayers) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  std::vector<TestMemory> others;  // outlive the agents, which go first
  KvNodes prefill = std::move(pair.prefill);
  KvNodes decode = std::move(pair.decode);
  Agent& source = prefill.ranks[0]->agent();
  for (uint32_t layer = 0; layer < kLayered.layers; ++layer) {
    for (Agent* agent : {&source, &decode.ranks[0]->agent(), &decode.ranks[1]->agent()}) {
      ASSERT_OK_AND_ASSIGN(TestMemory other, TestMemory::Allocate(GetParam().memory, 4096));
      others.push_back(std::move(other));
      ASSERT_OK(agent->RegisterMemory(others.back().span(), Access::kReadWrite));
    }
    ASSERT_OK(Introduce(prefill, decode));
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         source.WriteLayers(pair.blocks, layer, 1, OfRequest("r")));
    ASSERT_OK(transfer.Wait(kAmple));
  }
  for (const auto& rank : decode.ranks) EXPECT_TRUE(rank->Holds(pair.to, 1));
}

TEST_P(AgentKvLayers, ALayerIsCancelledAndOthersGoOn) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  std::atomic<uint32_t> never{0};
  KvOptions held = OfRequest("held");
  held.transfer.ready = &never;
  ASSERT_OK_AND_ASSIGN(const Transfer cancelled, pair.Write(0, held));
  cancelled.Cancel();
  EXPECT_TRUE(Fails(cancelled.Wait(kAmple), absl::StatusCode::kCancelled, {}));
  for (uint32_t layer = 0; layer < kLayered.layers; ++layer) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, pair.Write(layer));
    EXPECT_OK(transfer.Wait(kAmple));
  }
  for (const auto& rank : pair.decode.ranks) EXPECT_TRUE(rank->Holds(pair.to, 1));
}

TEST_P(AgentKvLayers, ARequestThatWasGivenUpRefusesLayers) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  ASSERT_OK_AND_ASSIGN(const Transfer first, pair.Write(0));
  ASSERT_OK(first.Wait(kAmple));
  ASSERT_OK(pair.decode.ranks[0]->agent().DropRequest(kCache, RequestName("r")));
  ASSERT_OK_AND_ASSIGN(const Transfer refused, pair.Write(1));
  EXPECT_TRUE(Fails(refused.Wait(kAmple), absl::StatusCode::kFailedPrecondition, {"rank d-0"}));
}

TEST_P(AgentKvLayers, BlocksOutliveTheAgent) {
  PreparedPair pair(GetParam());
  ASSERT_OK(pair.Make());
  const PreparedBlocks copy = pair.blocks;
  pair.source().Kill();
  ASSERT_OK_AND_ASSIGN(pair.prefill, KvNodes::Create(GetParam(), "q", kLayered, {.tp = 1}));
  EXPECT_TRUE(Fails(pair.source().agent().WriteLayers(copy, 0, 1),
                    absl::StatusCode::kInvalidArgument, {"this agent has prepared"}));
  EXPECT_TRUE(Fails(pair.source().agent().WriteLayers({}, 0, 1), absl::StatusCode::kInvalidArgument,
                    {"this agent has prepared"}));
}

INSTANTIATE_TEST_SUITE_P(All, AgentKvLayers, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
