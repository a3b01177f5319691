// What the cases of the verbs backend have in common.
#ifndef KVXFER_TESTS_CONFORMANCE_VERBS_DEVICE_H_
#define KVXFER_TESTS_CONFORMANCE_VERBS_DEVICE_H_

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/backend_conformance.h"
#include "tests/support/test_backends.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {

inline constexpr uint64_t kOp = 4096;

inline FabricDevice DeviceOf(std::string host, std::string name, uint8_t subnet, uint8_t number,
                             int network = 0) {
  FabricDevice device{.name = std::move(name), .ports = {RocePort(subnet, number)}};
  device.ports[0].network = network;
  device.host = std::move(host);
  return device;
}

// `local` devices at the initiator and `remote` ones at the target, in one subnet.
inline std::vector<FabricDevice> Devices(int local, int remote) {
  std::vector<FabricDevice> out;
  out.reserve(static_cast<size_t>(local) + static_cast<size_t>(remote));
  for (int i = 0; i < local; ++i) {
    out.push_back(DeviceOf("initiator", "i" + std::to_string(i), 1, static_cast<uint8_t>(10 + i)));
  }
  for (int i = 0; i < remote; ++i) {
    out.push_back(DeviceOf("target", "t" + std::to_string(i), 1, static_cast<uint8_t>(50 + i)));
  }
  return out;
}

inline Flavour VerbsDeviceFlavour() {
  return {
      .name = "VerbsTestDevice", .backend = "verbs", .memory = MemoryType::kAttached, .faults = {}};
}

// Backends over devices in memory that each case chooses; at its end nothing of them is left.
class VerbsDevice : public BackendConformance {
 protected:
  void Use(std::vector<FabricDevice> devices, const verbs::VerbsOptions& options = {}) {
    fabric_ = std::make_unique<VerbsFabric>(std::move(devices));
    fabric_->SetRetryTime(std::chrono::milliseconds(50));
    scope_.emplace(fabric_.get(), options);
  }
  void TearDown() override {
    BackendConformance::TearDown();
    End();
  }
  void End() {
    pair_.reset();
    local_ = remote_ = nullptr;
    scope_.reset();
    if (fabric_ == nullptr) return;
    EXPECT_EQ(fabric_->overruns(), 0u);
    EXPECT_EQ(fabric_->live_objects(), 0u);
  }
  // A write over each rail arrives.
  void ExpectAllRailsWork() {
    const uint32_t rails = out().rails();
    const size_t before = in().immediates.size();
    Pattern(before).Fill(local_->bytes());
    ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, 7, rails, kOp)));
    ASSERT_TRUE(Ended());
    ASSERT_TRUE(Arrived(before + rails));
    EXPECT_EQ(Pattern(before).Mismatch(remote_->bytes().first(rails * kOp)), kNoMismatch);
  }
  bool DownIs(size_t count) {
    return pair_->Until([&] { return out().rails_down.size() == count || out().down; }) &&
           !out().down;
  }
  // What agents do after kRailDown.
  void FenceAndReopen(uint32_t rail) {
    in().FenceRail(rail);
    ASSERT_TRUE(pair_->Until([&] { return !in().fencing_rails.contains(rail); }));
    out().endpoint->ReopenRail(rail);
  }

  std::unique_ptr<VerbsFabric> fabric_;
  std::optional<ScopedFabric> scope_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_CONFORMANCE_VERBS_DEVICE_H_
