// What a backend may rely on of libfabric, whichever provider: run over each preset of the fake
// fabric and over the providers that need no device. docs/testing.md says where they differ.
#include <sys/mman.h>

#include <set>

#include "tests/fabric/pair.h"

namespace kvxfer::testing {
namespace {

using FabricContract = FabricPair;

TEST(FabricInfoContract, EveryAnswerHasWhatWasAskedFor) {
  const Info hints = Hints();
  Info found;
  ASSERT_EQ(GetInfo(*hints, &found), 0);
  for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
    EXPECT_EQ(info->caps & hints->caps, hints->caps);
    EXPECT_EQ(info->mode & ~hints->mode, 0u);
    EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
    EXPECT_EQ(info->domain_attr->mr_mode & ~hints->domain_attr->mr_mode, 0);
    EXPECT_EQ(std::string(info->fabric_attr->prov_name), Provider());
    ASSERT_NE(info->domain_attr->name, nullptr);
    EXPECT_GT(info->tx_attr->size, 0u);
    EXPECT_GE(info->tx_attr->iov_limit, 1u);
    EXPECT_GE(info->tx_attr->rma_iov_limit, 1u);
  }
}

TEST(FabricInfoContract, WhatIsNotThereIsNotAnswered) {
  const auto ask = [](auto change) {
    const Info hints = Hints();
    change(hints.get());
    Info found;
    return GetInfo(*hints, &found);
  };
  Info found;
  ASSERT_EQ(GetInfo(*Hints(), &found), 0);
  const size_t data = found->domain_attr->cq_data_size;
  EXPECT_EQ(ask([&](fi_info* h) { h->domain_attr->cq_data_size = data + 1; }), -FI_ENODATA);
  EXPECT_EQ(ask([&](fi_info* h) { h->tx_attr->inject_size = SIZE_MAX / 2; }), -FI_ENODATA);
  EXPECT_EQ(ask([](fi_info* h) { h->ep_attr->type = FI_EP_SOCK_STREAM; }), -FI_ENODATA);
  EXPECT_EQ(ask([](fi_info* h) { h->caps |= FI_MULTICAST; }), -FI_ENODATA);
  // Who cannot do without a mode bit does not answer; who can, answers without.
  const Info hints = Hints();
  hints->domain_attr->mr_mode = 0;
  const int result = GetInfo(*hints, &found);
  EXPECT_TRUE(result == 0 || result == -FI_ENODATA) << result;
  if (result == 0) {
    constexpr int kAny = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                         FI_MR_ENDPOINT | FI_MR_RAW;
    EXPECT_EQ(found->domain_attr->mr_mode & kAny, 0);
  }
}

TEST(FabricInfoContract, ACopyIsOfItsOwn) {
  Info found;
  ASSERT_EQ(GetInfo(*Hints(), &found), 0);
  const Info copy(fi_dupinfo(found.get()));
  EXPECT_EQ(copy->next, nullptr);
  EXPECT_EQ(copy->caps, found->caps);
  EXPECT_EQ(copy->tx_attr->size, found->tx_attr->size);
  EXPECT_NE(copy->domain_attr->name, found->domain_attr->name);
  EXPECT_STREQ(copy->domain_attr->name, found->domain_attr->name);
  EXPECT_STREQ(copy->fabric_attr->prov_name, found->fabric_attr->prov_name);
}

TEST_F(FabricContract, KeysAreWhoseTheModeSays) {
  std::vector<std::byte> bytes(4096);
  Fid<fid_mr> one, two;
  ASSERT_EQ(target.Register(bytes.data(), bytes.size(), kAllAccess, 7000, &one), 0);
  target.Enable(one.get());
  if (target.has(FI_MR_RAW)) {
    EXPECT_EQ(fi_mr_key(one.get()), FI_KEY_NOTAVAIL);
    EXPECT_GT(target.Tell(one.get(), bytes.data()).raw_size, 8u);
  } else if (target.has(FI_MR_PROV_KEY)) {
    ASSERT_EQ(target.Register(bytes.data(), bytes.size(), kAllAccess, 7000, &two), 0);
    target.Enable(two.get());
    EXPECT_NE(fi_mr_key(one.get()), fi_mr_key(two.get()));
    const size_t size = target.info().domain_attr->mr_key_size;
    EXPECT_TRUE(size >= 8 || fi_mr_key(one.get()) >> (8 * size) == 0);
  } else {
    EXPECT_EQ(fi_mr_key(one.get()), 7000u);
    EXPECT_LT(target.Register(bytes.data(), bytes.size(), kAllAccess, 7000, &two), 0);
  }
}

TEST_F(FabricContract, WhatTheModeAsksForIsNeeded) {
  Memory from(&initiator, 4096);
  Memory to(&target, 4096);
  if (initiator.has(FI_MR_LOCAL)) {
    const iovec iov = {from.data(), 64};
    fi_context2 context;
    EXPECT_EQ(fi_writev(initiator.endpoint(), &iov, nullptr, 1, peer, to.remote().base,
                        initiator.Import(to.remote()), &context),
              -FI_EINVAL);
  }
  if (target.has(FI_MR_ALLOCATED)) {
    void* const gone = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, 4096);
    Fid<fid_mr> region;
    EXPECT_LT(target.Register(gone, 4096, kAllAccess, 0, &region), 0);
  }
  if (target.has(FI_MR_ENDPOINT)) {
    std::vector<std::byte> bytes(4096);
    Fid<fid_mr> region;
    ASSERT_EQ(target.Register(bytes.data(), bytes.size(), kAllAccess, 0, &region), 0);
    uint8_t raw[64];
    size_t size = sizeof(raw);
    uint64_t base = 0;
    EXPECT_LT(fi_mr_raw_attr(region.get(), &base, raw, &size, 0), 0);
    EXPECT_LT(fi_mr_enable(region.get()), 0) << "enabled without an endpoint";
  }
}

TEST_F(FabricContract, WritesLandExactlyThere) {
  const size_t space = Fitting(1 << 20);
  Memory from(&initiator, space);
  Memory to(&target, space + 8192);
  Pattern(1).Fill(from.bytes());
  for (const size_t wanted : {size_t{1}, size_t{7}, size_t{4096}, size_t{65537}, space}) {
    const size_t bytes = std::min(wanted, space);
    std::fill(to.bytes().begin(), to.bytes().end(), kPoison);
    const size_t at = 1 + random() % 8191;
    ASSERT_EQ(Put(&from, to, {.to = at, .bytes = bytes}), 0);
    ASSERT_TRUE(AllEnded());
    ASSERT_EQ(TakeErrors(), 0);
    EXPECT_EQ(Pattern(1).Mismatch(Part(to, at, bytes)), kNoMismatch) << bytes;
    const auto poisoned = [](std::byte b) { return b == kPoison; };
    EXPECT_TRUE(std::all_of(to.data(), to.data() + at, poisoned)) << bytes;
    EXPECT_TRUE(std::all_of(to.data() + at + bytes, to.data() + to.bytes().size(), poisoned));
  }
}

// Delivery complete: at the completion the bytes are there, whatever the target does then.
TEST_F(FabricContract, DeliveryCompleteMeansThatTheBytesAreThere) {
  constexpr size_t kBytes = 20'000;
  constexpr uint64_t kWrites = 40;
  Memory from(&initiator, kBytes * kWrites);
  Memory to(&target, kBytes * kWrites);
  Pattern(2).Fill(from.bytes());
  std::map<uint64_t, size_t> writes;
  const auto look = [&] {
    for (const Ended& ended : initiator.ended) {
      EXPECT_EQ(ended.error, 0);
      const size_t at = writes[ended.op];
      EXPECT_EQ(Pattern(2).Mismatch(Part(to, at, kBytes), at), kNoMismatch) << at;
    }
    initiator.ended.clear();
  };
  for (size_t i = 0; i < kWrites; ++i) {
    const size_t at = i * kBytes;
    ASSERT_EQ(Put(&from, to, {.from = at, .to = at, .bytes = kBytes}), 0);
    writes[initiator.last_op()] = at;
  }
  look();
  EXPECT_TRUE(Until([&] {
    look();
    return initiator.outstanding() == 0;
  }));
  look();
}

// Each immediate once, not before the bytes of its own write.
TEST_F(FabricContract, ImmediatesComeOnceAndAfterTheirBytes) {
  constexpr size_t kBytes = 3000;
  const auto writes = static_cast<size_t>(Scaled(1000));
  Memory from(&initiator, kBytes * writes);
  Memory to(&target, kBytes * writes);
  Pattern(3).Fill(from.bytes());
  if (!HasData()) {
    EXPECT_LT(Put(&from, to, {.bytes = 8, .has_data = true, .data = 1}), 0);
    return;
  }
  std::set<uint64_t> seen;
  const auto look = [&] {
    for (const uint64_t data : target.arrived) {
      EXPECT_TRUE(seen.insert(data).second) << data << " came twice";
      const size_t at = (data & 0xffffff) * kBytes;
      EXPECT_EQ(Pattern(3).Mismatch(Part(to, at, kBytes), at), kNoMismatch) << data;
    }
    target.arrived.clear();
  };
  for (size_t i = 0; i < writes; ++i) {
    const size_t at = i * kBytes;
    const Write write = {
        .from = at, .to = at, .bytes = kBytes, .has_data = true, .data = 0x81000000u | i};
    ASSERT_EQ(Put(&from, to, write), 0);
    look();
  }
  EXPECT_TRUE(Until([&] {
    look();
    return seen.size() == writes && initiator.outstanding() == 0;
  })) << seen.size();
  EXPECT_EQ(TakeErrors(), 0);
  Linger(std::chrono::milliseconds(5));
  EXPECT_TRUE(target.arrived.empty());
}

TEST_F(FabricContract, AnEmptyWriteBringsItsImmediate) {
  Memory from(&initiator, 64);
  Memory to(&target, 64);
  if (!HasData()) return;
  // shm never ends one that waits for its delivery.
  const uint64_t flags = Provider() == "shm" ? 0 : FI_DELIVERY_COMPLETE;
  ASSERT_EQ(Put(&from, to, {.bytes = 0, .has_data = true, .data = 77, .flags = flags}), 0);
  ASSERT_TRUE(Until([&] { return !target.arrived.empty(); }));
  EXPECT_EQ(target.arrived.front(), 77u);
  ASSERT_TRUE(AllEnded());
  EXPECT_EQ(TakeErrors(), 0);
}

TEST_F(FabricContract, AFullQueueSaysSoAndHasSpaceAgain) {
  constexpr size_t kBytes = 512;
  constexpr int kMost = 50'000;
  Memory from(&initiator, kBytes);
  Memory to(&target, kBytes);
  // The first op, so that connections are up and the queue is what counts.
  ASSERT_EQ(Put(&from, to, {.bytes = kBytes}), 0);
  ASSERT_TRUE(AllEnded());
  int accepted = 1;
  ssize_t result = 0;
  for (; accepted < kMost; ++accepted) {
    result = initiator.Post(peer, &from, to.remote(), {.bytes = kBytes});
    if (result != 0) break;
  }
  EXPECT_EQ(result, -FI_EAGAIN) << accepted;
  const size_t full = initiator.outstanding();
  for (size_t i = 0; i < 2 * full; ++i) {
    ASSERT_EQ(Put(&from, to, {.bytes = kBytes}), 0);
    ++accepted;
  }
  ASSERT_TRUE(AllEnded());
  EXPECT_EQ(initiator.ended.size(), static_cast<size_t>(accepted));
  EXPECT_EQ(TakeErrors(), 0);
}

TEST_F(FabricContract, ReadsBringTheBytes) {
  const size_t space = Fitting(300'000);
  Memory to(&initiator, space);
  Memory from(&target, space);
  Pattern(4).Fill(from.bytes());
  for (const size_t wanted : {size_t{1}, size_t{5000}, space}) {
    const size_t bytes = std::min(wanted, space);
    std::fill(to.bytes().begin(), to.bytes().end(), std::byte{0});
    ASSERT_EQ(Insist([&] {
                return initiator.PostRead(peer, &to, from.remote(), space - bytes, 0, bytes);
              }),
              0);
    ASSERT_TRUE(AllEnded());
    EXPECT_EQ(TakeErrors(), 0);
    EXPECT_EQ(Pattern(4).Mismatch(Part(to, 0, bytes), space - bytes), kNoMismatch) << bytes;
    EXPECT_EQ(FirstNonZero(Part(to, bytes, space - bytes)), kNoMismatch) << bytes;
  }
}

TEST_F(FabricContract, PiecesOfAWriteComeTogether) {
  const size_t pieces = initiator.info().tx_attr->iov_limit;
  constexpr size_t kPiece = 5000;
  Memory from(&initiator, 2 * kPiece * pieces);
  Memory to(&target, kPiece * pieces);
  Pattern(5).Fill(from.bytes());
  std::vector<iovec> iov(pieces);
  std::vector<void*> desc(pieces, initiator.has(FI_MR_LOCAL) ? from.desc() : nullptr);
  for (size_t i = 0; i < pieces; ++i) iov[i] = {from.data() + 2 * kPiece * i, kPiece};
  const fi_rma_iov remote = {
      .addr = to.remote().base, .len = kPiece * pieces, .key = initiator.Import(to.remote())};
  fi_context2 context;
  fi_msg_rma message = {};
  message.msg_iov = iov.data();
  message.desc = desc.data();
  message.iov_count = pieces;
  message.addr = peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &context;
  ASSERT_EQ(Insist([&] {
              return fi_writemsg(initiator.endpoint(), &message,
                                 FI_COMPLETION | FI_DELIVERY_COMPLETE);
            }),
            0);
  fi_cq_data_entry entry = {};
  ASSERT_TRUE(StepUntil([&] { target.Poll(); },
                        [&] { return fi_cq_read(initiator.cq(), &entry, 1) == 1; }));
  EXPECT_EQ(entry.op_context, &context);
  for (size_t i = 0; i < pieces; ++i) {
    EXPECT_EQ(Pattern(5).Mismatch(Part(to, kPiece * i, kPiece), 2 * kPiece * i), kNoMismatch) << i;
  }
}

TEST_F(FabricContract, InjectedBuffersAreFreeAtOnce) {
  const size_t bytes = std::min<size_t>(initiator.info().tx_attr->inject_size, 64);
  if (bytes == 0) {
    Memory to(&target, 64);
    EXPECT_LT(fi_inject_write(initiator.endpoint(), "1234", 4, peer, to.remote().base,
                              initiator.Import(to.remote())),
              0);
    return;
  }
  constexpr size_t kWrites = 100;
  Memory to(&target, bytes * kWrites);
  const uint64_t key = initiator.Import(to.remote());
  std::vector<std::byte> buffer(bytes);
  for (size_t i = 0; i < kWrites; ++i) {
    ASSERT_EQ(Insist([&] {
                Pattern(i).Fill(buffer);
                const ssize_t result = fi_inject_write(initiator.endpoint(), buffer.data(), bytes,
                                                       peer, to.remote().base + i * bytes, key);
                std::fill(buffer.begin(), buffer.end(), kPoison);
                return result;
              }),
              0);
  }
  EXPECT_TRUE(Until([&] {
    for (size_t i = 0; i < kWrites; ++i) {
      if (Pattern(i).Mismatch(Part(to, i * bytes, bytes)) != kNoMismatch) return false;
    }
    return true;
  }));
  EXPECT_EQ(initiator.ended.size(), 0u);
}

TEST_F(FabricContract, MessagesComeWholeAndOnce) {
  constexpr size_t kSpace = 4096;
  constexpr size_t kMessages = 60;
  Memory from(&initiator, kSpace);
  Memory to(&target, kSpace * kMessages);
  Pattern(6).Fill(from.bytes());
  size_t posted = 0;
  std::multiset<uint64_t> sent;
  for (size_t i = 0; i < kMessages; ++i) {
    if (target.PostReceive(&to, posted * kSpace, kSpace) == 0) ++posted;
    const size_t bytes = 1 + random() % kSpace;
    ASSERT_EQ(Insist([&] {
                if (posted < kMessages && target.PostReceive(&to, posted * kSpace, kSpace) == 0) {
                  ++posted;
                }
                return initiator.PostSend(peer, &from, 0, bytes);
              }),
              0);
    sent.insert(bytes);
  }
  EXPECT_TRUE(Until([&] {
    if (posted < kMessages && target.PostReceive(&to, posted * kSpace, kSpace) == 0) ++posted;
    return target.received.size() == kMessages && initiator.outstanding() == 0;
  })) << target.received.size();
  EXPECT_EQ(TakeErrors(), 0);
  EXPECT_EQ(std::multiset<uint64_t>(target.received.begin(), target.received.end()), sent);
}

// Nothing is shared but what libfabric shares.
TEST_F(FabricContract, EachSideMayHaveAThreadOfItsOwn) {
  constexpr size_t kBytes = 2000;
  const auto writes = static_cast<size_t>(Scaled(500));
  Memory from(&initiator, kBytes * writes);
  Memory to(&target, kBytes * writes);
  Pattern(7).Fill(from.bytes());
  std::atomic<bool> over{false};
  std::thread other([&] {
    StepUntil([&] { target.Poll(); },
              [&] { return over && (!HasData() || target.arrived.size() == writes); });
  });
  bool accepted = true;
  for (size_t i = 0; i < writes && accepted; ++i) {
    const Write write = {
        .from = i * kBytes, .to = i * kBytes, .bytes = kBytes, .has_data = HasData(), .data = i};
    accepted = StepUntil([&] { initiator.Poll(); },
                         [&] { return initiator.Post(peer, &from, to.remote(), write) == 0; });
  }
  EXPECT_TRUE(accepted);
  EXPECT_TRUE(StepUntil([&] { initiator.Poll(); }, [&] { return initiator.outstanding() == 0; }));
  over = true;
  other.join();
  EXPECT_EQ(TakeErrors(), 0);
  EXPECT_EQ(target.arrived.size(), HasData() ? writes : 0);
  EXPECT_EQ(Pattern(7).Mismatch(to.bytes()), kNoMismatch);
}

}  // namespace
}  // namespace kvxfer::testing
