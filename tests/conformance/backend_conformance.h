// The suite that every backend passes, at the interface of kvxfer/backend.h. A backend joins it by
// a line in backend_flavours_test.cc; docs/adding-a-backend.md shows it.
#ifndef KVXFER_TESTS_CONFORMANCE_BACKEND_CONFORMANCE_H_
#define KVXFER_TESTS_CONFORMANCE_BACKEND_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/backend_pair.h"
#include "tests/support/flavour.h"
#include "tests/support/pattern.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {

// A connected, authorised pair, with a source at the initiator and memory of equal size at the
// target.
class BackendConformance : public ::testing::TestWithParam<Flavour> {
 protected:
  // Call first, within ASSERT_NO_FATAL_FAILURE.
  void Start(size_t bytes, bool authorize = true) {
    pair_ = BackendPair::Make(GetParam(), authorize);
    ASSERT_NE(pair_, nullptr);
    ASSERT_NO_FATAL_FAILURE(Prepare(bytes, authorize));
  }

  // Of a pair that is there already.
  void Prepare(size_t bytes, bool authorize = true) {
    auto local = pair_->initiator().Register(bytes);
    ASSERT_OK(local);
    local_ = *local;
    auto remote = pair_->target().Register(bytes);
    ASSERT_OK(remote);
    remote_ = *remote;
    if (!authorize) return;
    key_ = pair_->Import(*remote_);
    ASSERT_NE(key_, nullptr);
  }

  void TearDown() override {
    EXPECT_TRUE(remote_ == nullptr || remote_->memory.GuardsIntact());
    EXPECT_TRUE(local_ == nullptr || local_->memory.GuardsIntact());
  }

  bool immediates() const {
    return pair_->initiator().capabilities().arrival == Arrival::kImmediate;
  }
  const Capabilities& caps() const { return pair_->initiator().capabilities(); }
  TestLink& out() { return pair_->out(); }
  TestLink& in() { return pair_->in(); }

  // The same offset on both sides unless told otherwise.
  kvxfer::Run RunAt(uint64_t offset, uint64_t bytes) { return RunAt(offset, offset, bytes); }
  kvxfer::Run RunAt(uint64_t local, uint64_t remote, uint64_t bytes) {
    return {.local = local_->address() + local,
            .remote = remote_->address() + remote,
            .bytes = bytes,
            .registration = local_->registration.get(),
            .key = key_};
  }
  // Ops of `op_bytes` each, one after the other through both memories, over the rails in turn;
  // the immediate of op i is i.
  std::vector<Op> Stream(OpKind kind, uint64_t transfer, size_t count, uint64_t op_bytes) {
    std::vector<Op> ops;
    const uint32_t rails = out().rails();
    for (size_t i = 0; i < count; ++i) {
      const auto index = static_cast<uint32_t>(i);
      ops.push_back(out().Make(kind, transfer, {RunAt(i * op_bytes, op_bytes)},
                               kind == OpKind::kWrite ? std::optional(index) : std::nullopt,
                               index % rails));
    }
    return ops;
  }
  bool Ended() {
    return pair_->Until([&] { return pair_->AllEnded(); });
  }
  bool Arrived(size_t count) {
    return !immediates() || pair_->Until([&] { return in().immediates.size() >= count; });
  }
  // The immediates of every other op of Stream, from the first on.
  size_t EvenImmediates() {
    return static_cast<size_t>(std::ranges::count_if(
        in().immediates, [](uint32_t immediate) { return immediate % 2 == 0; }));
  }

  // backend_end_test.cc
  void ExpectQuiet(std::span<const Op> ops, std::span<const Op> rest,
                   const std::vector<uint64_t>& digests, size_t arrived);

  // backend_refusal_test.cc
  bool TargetChecks() const;
  void StartToRefuse();
  void ExpectImpossible(TestLink& link, const Op& op);
  // What the initiator takes a region of the target for.
  struct Claim {
    RemoteRegion region;
    std::string key;
  };
  static Claim ClaimOf(const TestRegion& region) {
    return {.region = region.remote(), .key = region.registration->key};
  }
  void ExpectRefused(OpKind kind, const Claim& region, uint64_t remote, uint64_t bytes);
  void ExpectNothingMoved();
  void ExpectItGoesOn();

  std::unique_ptr<BackendPair> pair_;
  TestRegion* local_ = nullptr;   // of the initiator
  TestRegion* remote_ = nullptr;  // of the target
  const RemoteKey* key_ = nullptr;
  std::mt19937_64 random_{TestSeed()};
  uint64_t local_digest_ = 0;  // at StartToRefuse
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_CONFORMANCE_BACKEND_CONFORMANCE_H_
