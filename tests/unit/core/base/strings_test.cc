#include "src/core/base/strings.h"

#include <gtest/gtest.h>

#include <string>

namespace kvxfer {
namespace {

TEST(Strings, ANameIsPutInFrontOnce) {
  const auto named = [](const char* message) -> std::string {
    return std::string(ToStd(WithName(absl::UnavailableError(message), "tcp").message()));
  };
  EXPECT_EQ(named("no route"), "tcp: no route");
  EXPECT_EQ(named("tcp: no route"), "tcp: no route");
  EXPECT_EQ(named("tcp peer 10.0.0.2: no route"), "tcp peer 10.0.0.2: no route");
  EXPECT_EQ(named("tcpdump: no route"), "tcp: tcpdump: no route");
  EXPECT_TRUE(WithName(absl::OkStatus(), "tcp").ok());
}

}  // namespace
}  // namespace kvxfer
