// KV caches of unlike instances: what a request's tokens are on one side, they are on the other,
// every rank is told once, and no other byte changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/kv_migration.h"
#include "tests/support/agents.h"
#include "tests/support/kv_nodes.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

const KvModel kPlain{.layers = 4, .heads = 4, .k_size = 16, .v_size = 16};
const KvModel kLatent{.layers = 4, .heads = 1, .k_size = 36, .v_size = 0};
const KvModel kUneven{
    .layers = 2, .heads = 2, .k_size = 12, .v_size = 8, .element = KvElement::kFp8E4M3};

struct Case {
  KvModel model;
  KvShape src;
  KvShape dst;
  KvPlace from;
  KvPlace to;
};

// Tokens that begin and end within blocks, ids in no order.
std::vector<Case> Cases() {
  const KvPlace whole{.ids = {5, 0, 3}, .tokens = 48};
  std::vector<Case> cases = {
      {kPlain, {.tp = 4}, {.tp = 2, .block_tokens = 32}, whole, {.ids = {7, 2}, .tokens = 48}},
      {kPlain,
       {.tp = 1, .form = Form::kTwo, .order = "2BNH"},
       {.tp = 2, .pp = 2, .form = Form::kApart, .order = "LBHN"},
       {.ids = {5, 0, 3}, .first_token = 5, .tokens = 39},
       {.ids = {6, 1, 4}, .first_token = 9, .tokens = 39}},
      {kPlain, {.tp = 2}, {.tp = 8}, whole, {.ids = {1, 4, 6}, .tokens = 48}},
      {kLatent,
       {.tp = 2, .form = Form::kFused, .order = "BN"},
       {.tp = 1, .pp = 2, .form = Form::kFused, .order = "LBN", .block_tokens = 64},
       {.ids = {2, 1}, .first_token = 3, .tokens = 29},
       {.ids = {7}, .first_token = 31, .tokens = 29}},
      {kUneven,
       {.tp = 2, .form = Form::kApart, .order = "BNH"},
       {.tp = 1, .form = Form::kApart, .order = "BHN"},
       whole,
       {.ids = {4, 6, 0}, .tokens = 48}},
  };
  // Under a sanitizer or an emulator each agent takes its time: heads that are split, and MLA.
  if (kSlow) cases = {cases[0], cases[3]};
  return cases;
}

KvBlocks Blocks(const KvPlace& local, const KvPlace& remote) {
  return {.cache = CacheName("kv"),
          .local_ids = local.ids,
          .remote_ids = remote.ids,
          .local_first_token = local.first_token,
          .remote_first_token = remote.first_token,
          .tokens = local.tokens};
}

KvOptions Request(std::string name) {
  return {.request = RequestName(std::move(name)),
          .transfer = {.notification = "what for", .deadline = kAmple}};
}

class AgentKv : public ::testing::TestWithParam<Flavour> {};

TEST_P(AgentKv, WritesBetweenUnlikeInstances) {
  for (const Case& c : Cases()) {
    ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", c.model, c.src));
    ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", c.model, c.dst));
    ASSERT_OK(Introduce(prefill, decode));
    std::vector<Transfer> transfers;
    for (const auto& rank : prefill.ranks) {
      rank->Fill(c.from, 1);
      ASSERT_OK_AND_ASSIGN(
          transfers.emplace_back(),
          rank->agent().WriteBlocks(decode.names, Blocks(c.from, c.to), Request("r")));
    }
    for (const auto& rank : decode.ranks) {
      ASSERT_OK_AND_ASSIGN(const Notification told, rank->agent().WaitNotification(kAmple));
      EXPECT_EQ(told.request, RequestName("r"));
      EXPECT_EQ(told.cache, CacheName("kv"));
      EXPECT_EQ(told.payload, "what for");
      EXPECT_TRUE(rank->Holds(c.to, 1));
      EXPECT_OK(rank->agent().WaitLayers(CacheName("kv"), RequestName("r"), rank->shard().layers,
                                         Duration::zero()));
      ASSERT_OK_AND_ASSIGN(const KvCounts counts, rank->agent().CountKv());
      EXPECT_EQ(counts.requests_whole, 1u);
      EXPECT_EQ(counts.requests_lost, 0u);
    }
    for (const Transfer& transfer : transfers) {
      EXPECT_OK(transfer.Wait(kAmple));
      EXPECT_EQ(transfer.Poll(), TransferState::kDone);
      EXPECT_FALSE(transfer.quarantined());
    }
    for (const auto& rank : decode.ranks) {
      EXPECT_FALSE(rank->agent().PollNotification().has_value());
    }
    if (HasFailure()) return;
  }
}

TEST_P(AgentKv, ReadsBetweenUnlikeInstances) {
  for (const Case& c : Cases()) {
    ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", c.model, c.src));
    ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", c.model, c.dst));
    ASSERT_OK(Introduce(decode, prefill));
    for (const auto& rank : prefill.ranks) rank->Fill(c.from, 1);
    std::vector<Transfer> transfers;
    for (const auto& rank : decode.ranks) {
      ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                           rank->agent().ReadBlocks(prefill.names, Blocks(c.to, c.from),
                                                    {.transfer = {.deadline = kAmple}}));
    }
    for (const Transfer& transfer : transfers) ASSERT_OK(transfer.Wait(kAmple));
    for (const auto& rank : decode.ranks) EXPECT_TRUE(rank->Holds(c.to, 1));
    if (HasFailure()) return;
  }
}

// Expect that a layer is known to be there when every head of it and of those before it is, that
// the request is told of once, and that what waits for more is told how far it is.
TEST_P(AgentKv, LayersAreThereInOrder) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 2}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode,
                       KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1, .block_tokens = 32}));
  ASSERT_OK(Introduce(prefill, decode));
  for (const auto& rank : prefill.ranks) rank->Fill(from, 1);
  KvNode& target = *decode.ranks[0];
  KvBlocks blocks = Blocks(from, to);
  blocks.layers = 1;
  std::vector<Transfer> transfers;
  for (blocks.first_layer = 0; blocks.first_layer < kPlain.layers; ++blocks.first_layer) {
    for (const auto& rank : prefill.ranks) {
      EXPECT_TRUE(Fails(target.agent().WaitLayers(CacheName("kv"), RequestName("r"),
                                                  blocks.first_layer + 1, Duration::zero()),
                        kTimedOut, {"request r", "layers are there"}));
      EXPECT_FALSE(target.agent().PollNotification().has_value());
      ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                           rank->agent().WriteBlocks(decode.names, blocks, Request("r")));
    }
    ASSERT_OK(target.agent().WaitLayers(CacheName("kv"), RequestName("r"), blocks.first_layer + 1,
                                        kAmple));
    EXPECT_TRUE(target.Holds(to, 1, 0, blocks.first_layer + 1));
  }
  ASSERT_OK_AND_ASSIGN(const Notification told, target.agent().WaitNotification(kAmple));
  EXPECT_EQ(told.request, RequestName("r"));
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.Wait(kAmple));
  EXPECT_FALSE(target.agent().PollNotification().has_value());
}

// Many requests at once, whose layers come in any order: each is told of exactly once, when it is
// all there.
TEST_P(AgentKv, EveryRequestIsToldOnce) {
  constexpr uint32_t kRequests = 12;
  const KvShape shape{.tp = 2, .blocks = kRequests};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, shape));
  ASSERT_OK_AND_ASSIGN(KvNodes decode,
                       KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1, .blocks = kRequests}));
  ASSERT_OK(Introduce(prefill, decode));
  std::vector<KvPlace> from(kRequests);
  std::vector<KvPlace> to(kRequests);
  for (uint32_t r = 0; r < kRequests; ++r) {
    from[r] = {.ids = {r}, .tokens = 16};
    to[r] = {.ids = {(r * 5 + 3) % kRequests}, .tokens = 16};
    for (const auto& rank : prefill.ranks) rank->Fill(from[r], static_cast<uint8_t>(r));
  }
  std::vector<Transfer> transfers;
  for (uint32_t layer = 0; layer < kPlain.layers; ++layer) {
    for (uint32_t r = 0; r < kRequests; ++r) {
      for (const auto& rank : prefill.ranks) {
        KvBlocks blocks = Blocks(from[r], to[r]);
        blocks.first_layer = (layer + r) % kPlain.layers;
        blocks.layers = 1;
        KvOptions options = Request(std::to_string(r));
        options.transfer.priority = static_cast<int>(r % 3);
        ASSERT_OK_AND_ASSIGN(transfers.emplace_back(),
                             rank->agent().WriteBlocks(decode.names, blocks, options));
      }
    }
  }
  std::vector<int> told(kRequests);
  for (uint32_t i = 0; i < kRequests; ++i) {
    ASSERT_OK_AND_ASSIGN(const Notification n, decode.ranks[0]->agent().WaitNotification(kAmple));
    ++told[static_cast<size_t>(std::stoi(n.request.text))];
  }
  EXPECT_EQ(told, std::vector<int>(kRequests, 1));
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.Wait(kAmple));
  EXPECT_FALSE(decode.ranks[0]->agent().PollNotification().has_value());
  // Once all of them are expected, all of them are there.
  bool holds = false;
  for (uint32_t r = 0; r < kRequests; ++r) {
    holds = decode.ranks[0]->Holds(to[r], static_cast<uint8_t>(r));
  }
  EXPECT_TRUE(holds);
}

TEST_P(AgentKv, ALeaseHoldsUntilEveryoneHasFetched) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode,
                       KvNodes::Create(GetParam(), "d", kPlain, {.tp = 2, .block_tokens = 32}));
  ASSERT_OK(Introduce(decode, prefill));
  KvNode& owner = *prefill.ranks[0];
  owner.Fill(from, 1);
  ASSERT_OK(owner.agent().LeaseBlocks(CacheName("kv"), LeaseName("r"), from.ids, kAmple));
  for (const auto& rank : decode.ranks) {
    EXPECT_FALSE(owner.agent().PollKvEvent().has_value());
    ASSERT_OK_AND_ASSIGN(
        const Transfer transfer,
        rank->agent().ReadBlocks(prefill.names, Blocks(to, from),
                                 {.lease = LeaseName("r"), .transfer = {.deadline = kAmple}}));
    ASSERT_OK(transfer.Wait(kAmple));
    EXPECT_TRUE(rank->Holds(to, 1));
  }
  std::optional<KvEvent> event;
  ASSERT_TRUE(Eventually(kAmple, [&] {
    event = owner.agent().PollKvEvent();
    return event.has_value();
  }));
  EXPECT_EQ(event->lease, LeaseName("r"));
  EXPECT_EQ(event->end, KvLeaseEnd::kConsumed);
  // Whoever comes later gets no bytes as good ones.
  owner.Fill(from, 7);
  ASSERT_OK_AND_ASSIGN(const Transfer late,
                       decode.ranks[0]->agent().ReadBlocks(
                           prefill.names, Blocks(to, from),
                           {.lease = LeaseName("r"), .transfer = {.deadline = kAmple}}));
  EXPECT_TRUE(Fails(late.Wait(kAmple), absl::StatusCode::kFailedPrecondition,
                    {"p-0", "lease r", "consumed"}));
  ASSERT_OK_AND_ASSIGN(const KvCounts counts, owner.agent().CountKv());
  EXPECT_EQ(counts.leases_granted, 1u);
  EXPECT_EQ(counts.leases_consumed, 1u);
  EXPECT_GE(counts.fetches_refused, 1u);
}

// With one head on many ranks most owners are read by nobody; their blocks are not held in vain.
TEST_P(AgentKv, OwnersThatNobodyReadsAreToldSo) {
  const KvShape shape{.form = Form::kFused, .order = "BN"};
  KvShape owners = shape;
  owners.tp = 3;
  const KvPlace place{.ids = {2, 1}, .tokens = 32};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kLatent, owners));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kLatent, shape));
  ASSERT_OK(Introduce(decode, prefill));
  for (const auto& rank : prefill.ranks) {
    rank->Fill(place, 1);
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("r"), place.ids, kAmple));
  }
  ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                       decode.ranks[0]->agent().ReadBlocks(
                           prefill.names, Blocks(place, place),
                           {.lease = LeaseName("r"), .transfer = {.deadline = kAmple}}));
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(decode.ranks[0]->Holds(place, 1));
  for (const auto& rank : prefill.ranks) {
    std::optional<KvEvent> event;
    ASSERT_TRUE(Eventually(kAmple, [&] {
      event = rank->agent().PollKvEvent();
      return event.has_value();
    }));
    EXPECT_EQ(event->end, KvLeaseEnd::kConsumed);
  }
}

TEST_P(AgentKv, LeasesThatDoNotHoldFailTheFetch) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 2}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(decode, prefill));
  const auto fetch = [&](const std::string& lease, const KvPlace& what) {
    auto transfer = decode.ranks[0]->agent().ReadBlocks(
        prefill.names, Blocks(to, what),
        {.lease = LeaseName(lease), .transfer = {.deadline = kAmple}});
    return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  };
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  const auto refuses = [](const absl::Status& status, KvLeaseRefusal refusal,
                          std::initializer_list<const char*> said) {
    EXPECT_EQ(LeaseRefusalOf(status), refusal) << status;
    return Fails(status, kRefused, said);
  };
  using enum KvLeaseRefusal;
  EXPECT_TRUE(refuses(fetch("unknown", from), kUnknown, {"p-", "lease unknown", "never granted"}));
  for (const auto& rank : prefill.ranks) {
    // What was refused may still be on its way out.
    rank->Overwrite(from, 1);
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("other"),
                                        std::vector<uint32_t>{1, 2, 4}, kAmple));
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("short"), from.ids,
                                        std::chrono::milliseconds(1)));
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("gone"), from.ids, kAmple));
    ASSERT_OK(rank->agent().ReleaseLease(LeaseName("gone")));
    for (const char* ended : {"gone", "short"}) {
      std::optional<KvEvent> event;
      ASSERT_TRUE(Eventually(kAmple, [&] {
        event = rank->agent().PollKvEvent();
        return event.has_value();
      }));
      EXPECT_TRUE(event->lease == LeaseName("gone") || event->lease == LeaseName("short")) << ended;
    }
  }
  EXPECT_TRUE(refuses(fetch("other", from), kOtherBlocks, {"lease other", "not the blocks"}));
  EXPECT_TRUE(refuses(fetch("short", from), kEnded, {"lease short", "expired"}));
  EXPECT_TRUE(refuses(fetch("gone", from), kEnded, {"lease gone", "released"}));
  // One owner of two lets go: the group is not done.
  for (const auto& rank : prefill.ranks) {
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("half"), from.ids, kAmple));
  }
  ASSERT_OK(prefill.ranks[1]->agent().ReleaseLease(LeaseName("half")));
  EXPECT_TRUE(refuses(fetch("half", from), kEnded, {"p-1", "lease half", "released"}));
}

// What a lease holds is no part of its name: an owner tells a reader of something else from one
// that comes before the grant, and gives neither a byte.
TEST_P(AgentKv, ALeaseIsReadByThoseWhoSayWhatItHolds) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 2}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(decode, prefill));
  KvNode& reader = *decode.ranks[0];
  const auto fetch = [&](const std::string& lease, const std::string& contents) {
    auto transfer = reader.agent().ReadBlocks(
        prefill.names, Blocks(to, from),
        {.lease = LeaseName(lease), .lease_contents = contents, .transfer = {.deadline = kAmple}});
    return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  };
  const std::string longest(255, 'c');
  for (const auto& rank : prefill.ranks) {
    rank->Fill(from, 1);
    EXPECT_TRUE(Fails(
        rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("r"), from.ids, kAmple, longest + "c"),
        absl::StatusCode::kInvalidArgument, {"lease r", "256 bytes"}));
    ASSERT_OK(
        rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("r"), from.ids, kAmple, longest));
    ASSERT_OK(rank->agent().LeaseBlocks(CacheName("kv"), LeaseName("plain"), from.ids, kAmple));
  }
  for (const std::string& other : {std::string(), longest.substr(1), std::string("another")}) {
    const absl::Status status = fetch("r", other);
    EXPECT_EQ(LeaseRefusalOf(status), KvLeaseRefusal::kOtherContents) << status;
    EXPECT_TRUE(Fails(status, absl::StatusCode::kFailedPrecondition, {"p-", "lease r", "wants"}));
    EXPECT_EQ(std::string(status.message()).find("ccc"), std::string::npos)
        << "contents are secret";
  }
  EXPECT_EQ(LeaseRefusalOf(fetch("plain", "x")), KvLeaseRefusal::kOtherContents);
  EXPECT_TRUE(Fails(fetch("", "x"), absl::StatusCode::kInvalidArgument, {"lease"}));
  EXPECT_TRUE(Fails(fetch("r", longest + "c"), absl::StatusCode::kInvalidArgument, {"255"}));
  EXPECT_OK(fetch("r", longest));
  EXPECT_TRUE(reader.Holds(to, 1));
}

// One of two owners is late: the read waits for it, and the other's lease is consumed once.
TEST_P(AgentKv, AReadWaitsForTheGrant) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 2}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(decode, prefill));
  KvNode& reader = *decode.ranks[0];
  const auto fetch = [&](const std::string& lease, const std::string& contents, Duration wait) {
    return reader.agent().ReadBlocks(prefill.names, Blocks(to, from),
                                     {.lease = LeaseName(lease),
                                      .lease_contents = contents,
                                      .lease_wait = wait,
                                      .transfer = {.deadline = kAmple}});
  };
  for (const auto& rank : prefill.ranks) rank->Fill(from, 1);
  const auto grant = [&](size_t rank, const std::string& lease) {
    return prefill.ranks[rank]->agent().LeaseBlocks(CacheName("kv"), LeaseName(lease), from.ids,
                                                    kAmple, "prompt");
  };

  ASSERT_OK(grant(0, "late"));
  ASSERT_OK_AND_ASSIGN(const Transfer late, fetch("late", "prompt", kAmple));
  ASSERT_OK_AND_ASSIGN(const Transfer other, fetch("late", "another prompt", kAmple));
  EXPECT_EQ(LeaseRefusalOf(other.Wait(kAmple)), KvLeaseRefusal::kOtherContents);
  EXPECT_EQ(late.Poll(), TransferState::kActive);
  ASSERT_OK(grant(1, "late"));
  EXPECT_OK(late.Wait(kAmple));
  EXPECT_TRUE(reader.Holds(to, 1));

  // Those that wait for what is released at once were first.
  ASSERT_OK_AND_ASSIGN(const Transfer first, fetch("brief", "prompt", kAmple));
  const auto waiting = [&] {
    for (const auto& rank : prefill.ranks) {
      auto counts = rank->agent().CountKv();
      if (!counts.ok() || counts->reads_waiting == 0) return false;
    }
    return true;
  };
  ASSERT_TRUE(Eventually(kAmple, waiting));
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_OK(grant(rank, "brief"));
    const absl::Status released = prefill.ranks[rank]->agent().ReleaseLease(LeaseName("brief"));
    EXPECT_TRUE(released.ok() ||
                Fails(released, absl::StatusCode::kFailedPrecondition, {"consumed"}));
  }
  EXPECT_OK(first.Wait(kAmple));

  // It waits no longer than it may, and not when it is given up.
  ASSERT_OK_AND_ASSIGN(const Transfer brief, fetch("never", "", std::chrono::milliseconds(20)));
  EXPECT_EQ(LeaseRefusalOf(brief.Wait(kAmple)), KvLeaseRefusal::kUnknown);
  ASSERT_OK_AND_ASSIGN(Transfer given_up, fetch("given up", "prompt", kAmple));
  ASSERT_TRUE(Eventually(kAmple, waiting));
  given_up.Cancel();
  EXPECT_TRUE(Fails(given_up.Wait(kAmple), absl::StatusCode::kCancelled));
  ASSERT_TRUE(Eventually(kAmple, [&] { return !waiting(); }));
}

// The owner uses blocks for something else as soon as it is told that it may, whoever is reading
// them: what a reader is told is good is what was leased.
TEST_P(AgentKv, LeasesThatRunOutWhileTheyAreFetched) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 2}));
  ASSERT_OK(Introduce(decode, prefill));
  KvNode& owner = *prefill.ranks[0];
  // Its other rank never reads, so that no lease is consumed.
  KvNode& reader = *decode.ranks[0];
  std::mt19937_64 random(TestSeed());
  int good = 0;
  int refused = 0;
  unsigned longest = 3000;  // of a lease, us; a slow machine reads nothing within that
  for (int round = 0; round < Scaled(60) || ((good == 0 || refused == 0) && round < 2000);
       ++round) {
    if (good == 0 && round % 100 == 99) longest *= 2;
    const auto salt = static_cast<uint8_t>(round);
    const std::string lease = std::to_string(round);
    owner.Overwrite(from, salt);
    ASSERT_OK(owner.agent().LeaseBlocks(CacheName("kv"), LeaseName(lease), from.ids,
                                        std::chrono::microseconds(100 + random() % longest)));
    const Duration late = std::chrono::microseconds(random() % 2500);
    std::thread fetch([&] {
      std::this_thread::sleep_for(late);
      const auto transfer =
          reader.agent().ReadBlocks(prefill.names, Blocks(to, from),
                                    {.lease = LeaseName(lease), .transfer = {.deadline = kAmple}});
      ASSERT_OK(transfer);
      const absl::Status end = transfer->Wait(kAmple);
      if (end.ok()) {
        ++good;
        EXPECT_TRUE(reader.Holds(to, salt)) << "wrong bytes taken for good ones";
      } else {
        ++refused;
        EXPECT_TRUE(Fails(end, absl::StatusCode::kFailedPrecondition, {"lease"}));
      }
    });
    if (round % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      owner.agent().RevokeLease(LeaseName(lease)).IgnoreError();  // it has expired by itself
      owner.Overwrite(from, static_cast<uint8_t>(salt + 50));
    }
    const bool ended = Eventually(kAmple, [&] { return owner.agent().PollKvEvent().has_value(); });
    owner.Overwrite(from, static_cast<uint8_t>(salt + 100));
    fetch.join();
    ASSERT_TRUE(ended);
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 0);
  EXPECT_GT(refused, 0);
}

// One rank's part cannot be carried out: the whole fails, says whose, and only when the other parts
// have ended; what is written into those blocks afterwards stays.
TEST_P(AgentKv, AGroupEndsWhenEachOfItsPartsHas) {
  const KvPlace from{.ids = {0, 1, 2, 3, 4, 5, 6, 7}, .tokens = 128};
  const KvPlace to{.ids = {7, 6, 5, 4, 3, 2, 1, 0}, .tokens = 128};
  for (int round = 0; round < (kSlow ? 1 : 2); ++round) {
    ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 1}));
    ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 4}));
    ASSERT_OK(Introduce(prefill, decode));
    KvNode& source = *prefill.ranks[0];
    source.Fill(from, 1);
    decode.ranks[2]->Kill();
    KvOptions options = Request("r");
    options.transfer.deadline = std::chrono::milliseconds(500);
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         source.agent().WriteBlocks(decode.names, Blocks(from, to), options));
    const absl::Status end = transfer.Wait(kAmple);
    EXPECT_FALSE(end.ok());
    EXPECT_THAT(std::string(end.message()), HasSubstr("d-2"));
    EXPECT_NE(transfer.Poll(), TransferState::kDone);
    if (!transfer.quarantined()) {
      for (const size_t rank : {0u, 1u, 3u}) {
        decode.ranks[rank]->Fill(to, 9);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (const size_t rank : {0u, 1u, 3u}) {
        EXPECT_TRUE(decode.ranks[rank]->Holds(to, 9)) << "a late byte";
      }
    }
    if (HasFailure()) return;
  }
}

// A request moves while tokens are added to it: what it is at the end, it is on the other side,
// which is told once, with the last word.
TEST_P(AgentKv, ARunningRequestMoves) {
  const KvShape shape{.tp = 2, .block_tokens = 16, .blocks = 8};
  ASSERT_OK_AND_ASSIGN(KvNodes a, KvNodes::Create(GetParam(), "a", kPlain, shape));
  ASSERT_OK_AND_ASSIGN(KvNodes b,
                       KvNodes::Create(GetParam(), "b", kPlain, {.tp = 1, .block_tokens = 32}));
  ASSERT_OK(Introduce(a, b));
  KvPlace from{.ids = {5, 0, 3, 7, 1, 6}, .tokens = 0};
  KvPlace to{.ids = {2, 7, 4}, .tokens = 0};
  std::vector<std::unique_ptr<KvMigration>> moves;
  for (const auto& rank : a.ranks) {
    moves.push_back(std::make_unique<KvMigration>(&rank->agent(), b.names, RequestName("r"),
                                                  KvOptions{.transfer = {.deadline = kAmple}}));
  }
  for (const uint64_t tokens : {uint64_t{1}, uint64_t{35}, uint64_t{36}, uint64_t{70}}) {
    from.tokens = to.tokens = tokens;
    for (size_t rank = 0; rank < moves.size(); ++rank) {
      a.ranks[rank]->Add(from, 1);
      ASSERT_OK(moves[rank]->Copy(Blocks(from, to)));
    }
  }
  EXPECT_TRUE(Eventually(kAmple, [&] { return moves[0]->CaughtUp() && moves[1]->CaughtUp(); }));
  EXPECT_FALSE(b.ranks[0]->agent().PollNotification().has_value());
  from.tokens = to.tokens = 73;
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < moves.size(); ++rank) {
    a.ranks[rank]->Add(from, 1);
    ranks.emplace_back([&, rank] {
      const auto done = moves[rank]->Switch(Blocks(from, to), "token", kAmple);
      ASSERT_OK(done);
      EXPECT_EQ(done->tokens, 73u);
      EXPECT_GT(done->pause, Duration::zero());
      // Three tokens of half the heads in every layer.
      EXPECT_EQ(done->bytes, 3u * 4 * 2 * 32 * 2);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  ASSERT_OK_AND_ASSIGN(const Notification told, b.ranks[0]->agent().WaitNotification(kAmple));
  EXPECT_EQ(told.request, RequestName("r"));
  EXPECT_EQ(told.payload, "token");
  EXPECT_TRUE(b.ranks[0]->Holds(to, 1));
  EXPECT_FALSE(b.ranks[0]->agent().PollNotification().has_value());
}

// Expect the error of a copy to be told by every later call, for what failed is missing.
TEST_P(AgentKv, AMigrationThatFailedStaysFailed) {
  ASSERT_OK_AND_ASSIGN(KvNodes a, KvNodes::Create(GetParam(), "a", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes b, KvNodes::Create(GetParam(), "b", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(a, b));
  const std::atomic<uint32_t> never{0};
  KvMigration move(&a.ranks[0]->agent(), b.names, RequestName("r"),
                   {.transfer = {.deadline = kAmple, .ready = &never}});
  KvPlace from{.ids = {5, 0, 3}, .tokens = 20};
  KvPlace to{.ids = {2, 7, 4}, .tokens = 20};
  ASSERT_OK(move.Copy(Blocks(from, to)));
  EXPECT_FALSE(move.CaughtUp());
  ASSERT_OK(a.ranks[0]->agent().RemovePeer(b.names[0]));
  EXPECT_TRUE(Eventually(kAmple, [&] { return move.CaughtUp(); }));
  ASSERT_OK(Introduce(a, b));
  from.tokens = to.tokens = 25;
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(
        Fails(move.Copy(Blocks(from, to)), absl::StatusCode::kCancelled, {"request r", "removed"}));
  }
  EXPECT_TRUE(Fails(move.Switch(Blocks(from, to), "token", kAmple), absl::StatusCode::kCancelled,
                    {"request r", "removed"}));
}

// Expect a switch that did not come through in time to be over: nobody is told of it later.
TEST_P(AgentKv, ASwitchThatWasTooLateIsOver) {
  ASSERT_OK_AND_ASSIGN(KvNodes a, KvNodes::Create(GetParam(), "a", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes b, KvNodes::Create(GetParam(), "b", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(a, b));
  std::atomic<uint32_t> ready{0};
  KvMigration move(&a.ranks[0]->agent(), b.names, RequestName("r"),
                   {.transfer = {.deadline = kAmple, .ready = &ready}});
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 20};
  const KvPlace to{.ids = {2, 7, 4}, .tokens = 20};
  EXPECT_TRUE(Fails(move.Switch(Blocks(from, to), "token", std::chrono::milliseconds(50)),
                    absl::StatusCode::kDeadlineExceeded, {"request r"}));
  EXPECT_TRUE(move.CaughtUp());
  ready.store(1, std::memory_order_release);
  ASSERT_OK_AND_ASSIGN(const Transfer next,
                       a.ranks[0]->agent().Notify(b.names[0], "next", {.deadline = kAmple}));
  ASSERT_OK(next.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification told, b.ranks[0]->agent().WaitNotification(kAmple));
  EXPECT_EQ(told.payload, "next");
  EXPECT_FALSE(b.ranks[0]->agent().PollNotification().has_value());
}

// Expect the same code where what was copied before does not arrive in time: a migration goes on
// with nothing, unlike a wait.
TEST_P(AgentKv, ASwitchThatWaitsTooLongForACopyIsOver) {
  std::atomic<uint32_t> ready{0};
  ASSERT_OK_AND_ASSIGN(KvNodes a, KvNodes::Create(GetParam(), "a", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes b, KvNodes::Create(GetParam(), "b", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(a, b));
  KvMigration move(&a.ranks[0]->agent(), b.names, RequestName("r"),
                   {.transfer = {.deadline = kAmple, .ready = &ready}});
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 20};
  const KvPlace to{.ids = {2, 7, 4}, .tokens = 20};
  ASSERT_OK(move.Copy(Blocks(from, to)));
  EXPECT_TRUE(Fails(move.Switch(Blocks(from, to), "token", std::chrono::milliseconds(20)),
                    absl::StatusCode::kDeadlineExceeded, {"request r", "still active"}));
  ready.store(1, std::memory_order_release);
}

// Expect one event for a group, however many ranks it has, also where nothing moves.
TEST_P(AgentKv, AGroupHasOneEnd) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 2}));
  ASSERT_OK(Introduce(prefill, decode));
  Agent& agent = prefill.ranks[0]->agent();
  for (const uint64_t word : {uint64_t{7}, uint64_t{8}}) {
    ASSERT_OK_AND_ASSIGN(const Transfer written,
                         agent.WriteBlocks(decode.names, Blocks(from, to),
                                           {.transfer = {.deadline = kAmple, .user_word = word}}));
    std::array<AgentEvent, 4> events;
    ASSERT_OK_AND_ASSIGN(const size_t count,
                         agent.WaitEvents(events, kAmple, AgentEventKinds::kTransferEnd));
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(std::get<TransferEnd>(events[0]).user_word, word);
    EXPECT_EQ(std::get<TransferEnd>(events[0]).transfer.id(), written.id());
    EXPECT_EQ(written.Poll(), TransferState::kDone);
    EXPECT_EQ(agent.PollEvents(events, AgentEventKinds::kTransferEnd), 0u);
  }
}

// New work is refused; what was promised, a lease and a transfer on its way, is kept.
TEST_P(AgentKv, DrainWaitsForWhatWasPromised) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes prefill, KvNodes::Create(GetParam(), "p", kPlain, {.tp = 1}));
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1}));
  ASSERT_OK(Introduce(decode, prefill));
  ASSERT_OK(Introduce(prefill, decode));
  KvNode& owner = *prefill.ranks[0];
  Agent& agent = owner.agent();
  owner.Fill(from, 1);
  ASSERT_OK(agent.LeaseBlocks(CacheName("kv"), LeaseName("r"), from.ids, kAmple));
  std::atomic<uint32_t> ready{0};
  ASSERT_OK_AND_ASSIGN(const Transfer written,
                       agent.WriteBlocks(decode.names, Blocks(from, to),
                                         {.request = RequestName("w"),
                                          .transfer = {.deadline = kAmple, .ready = &ready}}));
  constexpr auto kLate = kTimedOut;
  EXPECT_TRUE(Fails(written.Wait(std::chrono::milliseconds(5)), kLate, {"to d-0", "still active"}));
  EXPECT_TRUE(Fails(agent.Drain(std::chrono::milliseconds(20)), kLate, {"1 KV leases"}));
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  EXPECT_TRUE(Fails(agent.Notify(decode.names[0], "new").status(), kRefused, {"being drained"}));
  EXPECT_TRUE(Fails(agent.LeaseBlocks(CacheName("kv"), LeaseName("new"), from.ids, kAmple),
                    kRefused, {"drained"}));
  EXPECT_OK(agent.RenewLease(LeaseName("r"), kAmple));

  ASSERT_OK_AND_ASSIGN(const Transfer fetched,
                       decode.ranks[0]->agent().ReadBlocks(
                           prefill.names, Blocks(to, from),
                           {.lease = LeaseName("r"), .transfer = {.deadline = kAmple}}));
  ASSERT_OK(fetched.Wait(kAmple));
  EXPECT_TRUE(Fails(agent.Drain(std::chrono::milliseconds(20)), kLate, {"1 transfers to d-0"}));
  ready.store(1, std::memory_order_release);
  ASSERT_OK(agent.Drain(kAmple));
  EXPECT_OK(written.Wait(kAmple));
  EXPECT_TRUE(decode.ranks[0]->Holds(to, 1));
}

// Also where another thread is in the engine, so that what was posted waits in its queue.
TEST_P(AgentKv, DrainKeepsWhatWasPostedBefore) {
  const KvPlace from{.ids = {5, 0, 3}, .tokens = 48};
  const KvPlace to{.ids = {1, 2, 3}, .tokens = 48};
  ASSERT_OK_AND_ASSIGN(KvNodes decode, KvNodes::Create(GetParam(), "d", kPlain, {.tp = 1}));
  for (int round = 0; round < 10; ++round) {
    ASSERT_OK_AND_ASSIGN(KvNodes prefill,
                         KvNodes::Create(GetParam(), absl::StrCat("p", round), kPlain, {.tp = 1}));
    ASSERT_OK(Introduce(prefill, decode));
    Agent& agent = prefill.ranks[0]->agent();
    std::atomic<bool> over{false};
    std::jthread driver([&] {
      while (!over.load()) (void)agent.CountKv();
    });
    const auto written = agent.WriteBlocks(
        decode.names, Blocks(from, to),
        {.request = RequestName(absl::StrCat("r", round)), .transfer = {.deadline = kAmple}});
    const absl::Status drained = agent.Drain(kAmple);
    over.store(true);
    ASSERT_OK(written);
    EXPECT_OK(drained);
    EXPECT_OK(written->Wait(kAmple));
  }
}

INSTANTIATE_TEST_SUITE_P(All, AgentKv, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
