// What is wrong with what is asked of KV caches is told by field, and by whose it is; nothing is
// posted.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

const KvModel kModel{.layers = 4, .heads = 4, .k_size = 16, .v_size = 16};
const std::vector<uint32_t> kIds = {5, 0, 3};

Flavour Tcp() { return TcpFlavour(); }

class BadKvInput : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(prefill_, KvNodes::Create(Tcp(), "p", kModel, {.tp = 2}));
    ASSERT_OK_AND_ASSIGN(decode_, KvNodes::Create(Tcp(), "d", kModel, {.tp = 2}));
    ASSERT_OK(Introduce(prefill_, decode_));
  }

  Agent& agent() { return prefill_.ranks[0]->agent(); }
  static KvBlocks Blocks() {
    return {.cache = CacheName("kv"), .local_ids = kIds, .remote_ids = kIds, .tokens = 48};
  }
  absl::Status Write(const KvBlocks& blocks, const KvOptions& options = {}) {
    return agent().WriteBlocks(decode_.names, blocks, options).status();
  }
  absl::Status Read(const KvBlocks& blocks, const KvOptions& options = {}) {
    return agent().ReadBlocks(decode_.names, blocks, options).status();
  }

  KvNodes prefill_;
  KvNodes decode_;
};

TEST_F(BadKvInput, Groups) {
  const auto write = [&](std::vector<std::string> group) {
    return agent().WriteBlocks(group, Blocks()).status();
  };
  EXPECT_TRUE(Fails(write({}), kInvalid, {"empty"}));
  EXPECT_TRUE(Fails(write({"d-1"}), kInvalid, {"rank 0 of 2", "missing"}));
  EXPECT_OK(write({"d-0"})) << "the other one has nothing of this rank's";
  EXPECT_TRUE(Fails(write({"d-0", "d-0"}), kInvalid, {"d-0", "both rank 0"}));
  EXPECT_TRUE(Fails(write({"d-0", "d-7"}), kNotFound, {"no peer d-7"}));
}

TEST_F(BadKvInput, AnotherModel) {
  KvModel other = kModel;
  other.element = KvElement::kFp16;
  ASSERT_OK_AND_ASSIGN(KvNodes strangers, KvNodes::Create(Tcp(), "s", other, {.tp = 1}));
  ASSERT_OK(Introduce(prefill_, strangers));
  EXPECT_TRUE(Fails(agent().WriteBlocks(strangers.names, Blocks()), kInvalid,
                    {"s-0", "element", "bf16", "fp16"}));
  other = kModel;
  other.fingerprint = 7;
  ASSERT_OK_AND_ASSIGN(KvNodes finer, KvNodes::Create(Tcp(), "f", other, {.tp = 1}));
  ASSERT_OK(Introduce(prefill_, finer));
  EXPECT_TRUE(Fails(agent().WriteBlocks(finer.names, Blocks()), kInvalid, {"f-0", "fingerprint"}));
}

TEST_F(BadKvInput, BlocksAndLayers) {
  KvBlocks blocks = Blocks();
  blocks.cache = CacheName("nope");
  EXPECT_TRUE(Fails(Write(blocks), kNotFound, {"this agent", "\"nope\""}));
  blocks = Blocks();
  blocks.tokens = 0;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"no tokens"}));
  blocks.tokens = 49;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"49 tokens", "3 blocks"}));
  blocks = Blocks();
  blocks.remote_first_token = 1;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"remote", "48 tokens from 1"}));
  const std::vector<uint32_t> beyond = {5, 0, 8};
  blocks = Blocks();
  blocks.remote_ids = beyond;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"peer d-0", "ids[2] is 8"}));
  EXPECT_TRUE(Fails(Read(blocks), kInvalid, {"ids[2] is 8"}));
  const std::vector<uint32_t> twice = {5, 0, 5};
  blocks.remote_ids = twice;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"remote", "5"}));
  EXPECT_OK(Read(blocks)) << "what is read may be read twice";
  blocks = Blocks();
  blocks.first_layer = 4;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"layers", "4"}));
  blocks.first_layer = 3;
  blocks.layers = 2;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"2 layers from 3"}));
  blocks.layers = 0;
  EXPECT_TRUE(Fails(Write(blocks), kInvalid, {"0 layers"}));
}

TEST_F(BadKvInput, Options) {
  EXPECT_TRUE(
      Fails(Write(Blocks(), {.request = RequestName(std::string(256, 'r'))}), kInvalid, {"255"}));
  EXPECT_TRUE(Fails(Write(Blocks(), {.transfer = {.notification = "x"}}), kInvalid, {"request"}));
  EXPECT_TRUE(Fails(Write(Blocks(), {.lease = LeaseName("l")}), kInvalid, {"lease"}));
  EXPECT_TRUE(Fails(Read(Blocks(), {.request = RequestName("r")}), kInvalid, {"request"}));
  EXPECT_TRUE(Fails(Write(Blocks(), {.request = RequestName("r"),
                                     .transfer = {.notification = std::string(
                                                      kMaxKvNotificationBytes + 1, 'n')}}),
                    kInvalid, {"32769"}));
  EXPECT_TRUE(
      Fails(Write(Blocks(), {.transfer = {.deadline = Duration::zero()}}), kInvalid, {"deadline"}));
  EXPECT_TRUE(Fails(Write(Blocks(), {.transfer = {.backend = "pigeon"}}), kInvalid, {"pigeon"}));
}

TEST_F(BadKvInput, Registrations) {
  ASSERT_OK_AND_ASSIGN(TestMemory memory, TestMemory::Allocate(MemoryType::kMapped, 1 << 20));
  const KvTensor tensor{.axes = "BHNC", .shape = {4, 2, 16, 32}, .strides = {1024, 512, 32, 1}};
  ASSERT_OK_AND_ASSIGN(
      const KvLayout layout,
      KvLayout::FromTensors(kModel, {.tp_size = 2, .layers = 4}, std::span(&tensor, 1)));
  std::vector<uint64_t> tensors;
  for (uint64_t i = 0; i < 4; ++i) tensors.push_back(memory.address() + i * 65536);
  const auto add = [&](std::string_view name) {
    return agent().RegisterKvCache(CacheName(name), layout, tensors);
  };
  EXPECT_TRUE(Fails(add("mine"), kInvalid, {"mine KV cache", "tensor 0"})) << "not in a region";
  ASSERT_OK_AND_ASSIGN(const RegionId region,
                       agent().RegisterMemory(memory.span(), Access::kReadWrite));
  EXPECT_TRUE(Fails(add(""), kInvalid, {"name"}));
  EXPECT_TRUE(Fails(add(std::string(256, 'c')), kInvalid, {"256"}));
  EXPECT_TRUE(Fails(add("kv"), absl::StatusCode::kAlreadyExists, {"\"kv\""}));
  std::swap(tensors[3], tensors[2]);
  tensors.pop_back();
  EXPECT_TRUE(Fails(add("mine"), kInvalid, {"3 tensors", "4"}));
  tensors.push_back(tensors[0] + 512);
  EXPECT_TRUE(Fails(add("mine"), kInvalid, {"overlap"}));
  tensors[3] = memory.address() + 2 * 65536;
  EXPECT_OK(add("mine"));
  EXPECT_TRUE(Fails(agent().DeregisterMemory(region, kAmple), absl::StatusCode::kFailedPrecondition,
                    {"\"mine\"", "deregister the cache"}));
  EXPECT_TRUE(Fails(agent().DeregisterKvCache(CacheName("yours")), kNotFound, {"\"yours\""}));
  EXPECT_OK(agent().DeregisterKvCache(CacheName("mine")));
  EXPECT_OK(agent().DeregisterMemory(region, kAmple));
  size_t more = 1;
  ASSERT_OK_AND_ASSIGN(const RegionId again,
                       agent().RegisterMemory(memory.span(), Access::kReadWrite));
  for (; more < kMaxKvCaches; ++more) ASSERT_OK(add(std::to_string(more)));
  EXPECT_TRUE(Fails(add("one more"), absl::StatusCode::kResourceExhausted, {"64"}));
  EXPECT_NE(again, region);
}

TEST_F(BadKvInput, WaitsAndLeases) {
  EXPECT_TRUE(Fails(agent().WaitLayers(CacheName("nope"), RequestName("r"), 1, kAmple), kNotFound,
                    {"\"nope\""}));
  EXPECT_TRUE(Fails(agent().WaitLayers(CacheName("kv"), RequestName("r"), 5, kAmple), kInvalid,
                    {"5 layers", "has 4"}));
  EXPECT_TRUE(
      Fails(agent().DropRequest(CacheName("nope"), RequestName("r")), kNotFound, {"\"nope\""}));
  ASSERT_OK(agent().DropRequest(CacheName("kv"), RequestName("never begun")));
  EXPECT_TRUE(Fails(agent().WaitLayers(CacheName("kv"), RequestName("never begun"), 1, kAmple),
                    absl::StatusCode::kAborted, {"never begun", "given up"}));

  const std::vector<uint32_t> beyond = {8};
  EXPECT_TRUE(Fails(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), beyond, kAmple), kInvalid,
                    {"block 8", "8"}));
  EXPECT_TRUE(Fails(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), {}, kAmple), kInvalid,
                    {"no blocks"}));
  EXPECT_TRUE(Fails(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), kIds, Duration::zero()),
                    kInvalid, {"time"}));
  EXPECT_TRUE(
      Fails(agent().LeaseBlocks(CacheName("kv"), LeaseName(""), kIds, kAmple), kInvalid, {"name"}));
  EXPECT_TRUE(Fails(agent().LeaseBlocks(CacheName("nope"), LeaseName("l"), kIds, kAmple), kNotFound,
                    {"\"nope\""}));
  EXPECT_TRUE(Fails(agent().RenewLease(LeaseName("l"), kAmple), kNotFound, {"lease l"}));
  EXPECT_TRUE(Fails(agent().ReleaseLease(LeaseName("l")), kNotFound, {"lease l"}));
  ASSERT_OK(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), kIds, kAmple));
  EXPECT_TRUE(Fails(agent().LeaseBlocks(CacheName("kv"), LeaseName("l"), kIds, kAmple),
                    absl::StatusCode::kAlreadyExists, {"lease l"}));
  EXPECT_OK(agent().RenewLease(LeaseName("l"), kAmple));
  EXPECT_OK(agent().ReleaseLease(LeaseName("l")));
  ASSERT_TRUE(agent().PollKvEvent().has_value());
  EXPECT_TRUE(Fails(agent().RenewLease(LeaseName("l"), kAmple),
                    absl::StatusCode::kFailedPrecondition, {"lease l", "released"}));
}

// A request of which parts contradict each other is never told: who wrote the part learns why, so
// do those who wait, and the application.
TEST_F(BadKvInput, PartsThatDoNotGoTogether) {
  KvNode& target = *decode_.ranks[0];
  const auto write = [&](const KvBlocks& blocks, const std::string& request) {
    const auto transfer =
        agent().WriteBlocks(decode_.names, blocks, {.request = RequestName(request)});
    if (!transfer.ok()) return transfer.status();
    absl::Status end = transfer->Wait(kAmple);
    EXPECT_EQ(transfer->delivery(), end.ok() ? Delivery::kDelivered : Delivery::kNotDelivered);
    return end;
  };
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  KvBlocks half = Blocks();
  half.layers = 2;
  const std::vector<uint32_t> others = {6, 1, 2};
  ASSERT_OK(write(half, "r"));
  half.first_layer = 2;
  half.remote_ids = others;
  EXPECT_TRUE(Fails(write(half, "r"), kRefused, {"d-0", "request r", "other blocks"}));
  EXPECT_TRUE(Fails(target.agent().WaitLayers(CacheName("kv"), RequestName("r"), 4, kAmple),
                    absl::StatusCode::kAborted, {"request r", "given up"}));
  EXPECT_FALSE(target.agent().PollNotification().has_value());
  const std::optional<KvEvent> event = target.agent().PollKvEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, KvEventKind::kRequestLost);
  EXPECT_EQ(event->request, RequestName("r"));
  EXPECT_EQ(event->cache, CacheName("kv"));
  EXPECT_NE(event->why.find("other blocks"), std::string::npos);
  // Twice the same.
  ASSERT_OK(write(Blocks(), "s"));
  ASSERT_OK_AND_ASSIGN(const Notification told, target.agent().WaitNotification(kAmple));
  EXPECT_EQ(told.request, RequestName("s"));
  EXPECT_TRUE(Fails(write(Blocks(), "s"), kRefused, {"d-0", "request s", "after its end"}));
  EXPECT_FALSE(target.agent().PollNotification().has_value());
  // Into a cache that is no more.
  ASSERT_OK(target.agent().DeregisterKvCache(CacheName("kv")));
  EXPECT_TRUE(Fails(write(Blocks(), "t"), kRefused, {"d-0", "no KV cache"}));
  ASSERT_OK_AND_ASSIGN(const KvCounts counts, target.agent().CountKv());
  EXPECT_EQ(counts.requests_whole, 1u);
  EXPECT_EQ(counts.requests_lost, 1u);
}

// Of several notifications of one request that which came last is told, wherever it came.
TEST_F(BadKvInput, ANotificationWithAnyPart) {
  KvBlocks layer = Blocks();
  layer.layers = 1;
  for (layer.first_layer = 0; layer.first_layer < 4; ++layer.first_layer) {
    KvOptions options{.request = RequestName("r")};
    if (layer.first_layer % 2 == 0)
      options.transfer.notification = std::to_string(layer.first_layer);
    const auto transfer = agent().WriteBlocks(decode_.names, layer, options);
    ASSERT_OK(transfer);
    ASSERT_OK(transfer->Wait(kAmple));
  }
  ASSERT_OK_AND_ASSIGN(const Notification told, decode_.ranks[0]->agent().WaitNotification(kAmple));
  EXPECT_EQ(told.payload, "2");
}

TEST(KvRequests, AreGivenUpWhenNothingMoreComes) {
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(Tcp(), "p", kModel, {.tp = 2}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode,
                       KvNodes::Create(Tcp(), "d", kModel, {.tp = 1}, [](AgentOptions& o) {
                         o.kv_request_timeout = std::chrono::milliseconds(50);
                       }));
  ASSERT_OK(Introduce(prefill, decode));
  const KvBlocks blocks{
      .cache = CacheName("kv"), .local_ids = kIds, .remote_ids = kIds, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(
      const Transfer half,
      prefill.ranks[0]->agent().WriteBlocks(decode.names, blocks, {.request = RequestName("r")}));
  ASSERT_OK(half.Wait(kAmple));
  EXPECT_TRUE(
      Fails(decode.ranks[0]->agent().WaitLayers(CacheName("kv"), RequestName("r"), 4, kAmple),
            absl::StatusCode::kAborted, {"request r", "given up"}));
  ASSERT_OK_AND_ASSIGN(const KvCounts counts, decode.ranks[0]->agent().CountKv());
  EXPECT_EQ(counts.requests_lost, 1u);
  EXPECT_FALSE(decode.ranks[0]->agent().PollNotification().has_value());
  const std::optional<KvEvent> event = decode.ranks[0]->agent().PollKvEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, KvEventKind::kRequestLost);
  EXPECT_NE(event->why.find("of 16 heads and layers are missing"), std::string::npos) << event->why;
}

}  // namespace
}  // namespace kvxfer::testing
