// What the option `control` makes of shm's rings, at either side.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "kvxfer/options.h"
#include "src/core/base/host_identity.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

// In this process, of both sides.
size_t RingMappings() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    count += line.find("kvxfer-rings") != std::string::npos ? 1 : 0;
  }
  return count;
}

struct Sides {
  Side dialler;
  Side target;
  size_t mappings = RingMappings();

  Sides(ControlCarrier here, ControlCarrier there) : dialler(here), target(there) {
    auto endpoint =
        dialler.backend->Connect(target.backend->Describe().address, ReadHostIdentity());
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    if (endpoint.ok()) dialler.endpoints.push_back(*std::move(endpoint));
  }
  bool Until(const std::function<bool()>& done) { return Drive({&dialler, &target}, done); }
  bool BothTalk() {
    if (!Until([&] { return dialler.connected == 1 && target.endpoints.size() == 1; })) {
      return false;
    }
    target.endpoints[0]->Authorize();
    EXPECT_TRUE(Send(target.endpoints[0].get(), "hello"));
    EXPECT_TRUE(Send(dialler.endpoints[0].get(), std::string(100'000, 'x')));
    return Until([&] { return dialler.messages.size() == 1 && target.messages.size() == 1; });
  }
};

TEST(ShmControl, TheCapabilityIsAlwaysShm) {
  for (const auto control :
       {ControlCarrier::kAuto, ControlCarrier::kShm, ControlCarrier::kTcp, ControlCarrier::kRdma}) {
    const Side side(control);
    EXPECT_EQ(side.backend->capabilities().carrier, ControlCarrier::kShm);
  }
}

TEST(ShmControl, RingsAreMadeOnlyWhereBothSidesUseThem) {
  for (const auto here : {ControlCarrier::kAuto, ControlCarrier::kShm, ControlCarrier::kTcp}) {
    for (const auto there : {ControlCarrier::kAuto, ControlCarrier::kShm, ControlCarrier::kTcp}) {
      const bool ringless = here == ControlCarrier::kTcp || there == ControlCarrier::kTcp;
      const bool required = here == ControlCarrier::kShm || there == ControlCarrier::kShm;
      if (ringless && required) continue;
      Sides sides(here, there);
      EXPECT_TRUE(sides.BothTalk());
      if (ringless) {
        EXPECT_EQ(RingMappings(), sides.mappings);
      } else {
        EXPECT_GE(RingMappings(), sides.mappings + 2);
      }
      EXPECT_TRUE(sides.dialler.down.empty());
      EXPECT_TRUE(sides.target.down.empty());
    }
  }
}

TEST(ShmControl, WhoRequiresRingsEndsALinkWithoutThem) {
  for (const bool here : {true, false}) {
    Sides sides(here ? ControlCarrier::kShm : ControlCarrier::kTcp,
                here ? ControlCarrier::kTcp : ControlCarrier::kShm);
    ASSERT_TRUE(sides.Until(
        [&] { return sides.dialler.down.size() == 1 && sides.target.down.size() == 1; }));
    for (const Side* side : {&sides.dialler, &sides.target}) {
      const std::string why = side->down.begin()->second.ToString();
      EXPECT_NE(why.find("KVXFER_CONTROL"), std::string::npos) << why;
      EXPECT_NE(why.find("rings"), std::string::npos) << why;
      EXPECT_EQ(side->after_down, 0u);
    }
  }
}

}  // namespace
}  // namespace kvxfer::shm_test
