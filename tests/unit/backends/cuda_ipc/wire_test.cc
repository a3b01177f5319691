// What two cuda_ipc backends say to each other, and whom they take for a peer.
#include "src/backends/cuda_ipc/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_macros.h"

namespace kvxfer::cuda_ipc {
namespace {

using ::kvxfer::testing::Fails;

TEST(CudaIpcWire, AddressesComeBack) {
  const Whereabouts at{.ipc_namespace = 4026531839, .desk = "kvxfer-cuda-a-b", .control = "1;x;y"};
  ASSERT_OK_AND_ASSIGN(const Whereabouts back, DecodeWhereabouts(Encode(at)));
  EXPECT_EQ(back.ipc_namespace, at.ipc_namespace);
  EXPECT_EQ(back.desk, at.desk);
  EXPECT_EQ(back.control, at.control);
  for (const std::string& damaged :
       {std::string(), std::string("2|1|desk|1;x;y"), std::string("1|x|desk|1;x;y"),
        std::string("1|1||1;x;y"), std::string("1|1|desk"),
        "1|1|" + std::string(107, 'd') + "|1;x;y"}) {
    EXPECT_TRUE(Fails(DecodeWhereabouts(damaged), absl::StatusCode::kInvalidArgument)) << damaged;
  }
}

TEST(CudaIpcWire, KeysComeBack) {
  const RegionKey key{.region = 7, .rkey = 0x9e3779b1, .device = "0123"};
  ASSERT_OK_AND_ASSIGN(const RegionKey back, DecodeKey(Encode(key)));
  EXPECT_EQ(back.region, key.region);
  EXPECT_EQ(back.rkey, key.rkey);
  EXPECT_EQ(back.device, key.device);
  for (const char* const damaged :
       {"", "1:7:8", "1:0:8:u", "1:-1:8:u", "1:7:99999999999:u", "2:7:8:u", "1:7:8:u:v"}) {
    EXPECT_TRUE(Fails(DecodeKey(damaged), absl::StatusCode::kInvalidArgument)) << damaged;
  }
}

TEST(CudaIpcWire, HelloAndJoinedAreToldApart) {
  const Hello hello{.word = {1, 2, 3}};
  const auto frame = Encode(hello);
  ASSERT_TRUE(DecodeHello(frame).has_value());
  EXPECT_EQ(DecodeHello(frame)->word, hello.word);
  EXPECT_FALSE(IsJoined(frame));
  EXPECT_FALSE(DecodeHello(std::span(frame).first(16)).has_value());
  EXPECT_TRUE(IsJoined(Encode(Joined{})));
  EXPECT_FALSE(DecodeHello(Encode(Joined{})).has_value());
  EXPECT_FALSE(IsJoined({}));
}

TEST(CudaIpcWire, BodiesOfAnotherLengthAreNone) {
  const PartPacket part{.region = 3, .form = HandleForm::kFile};
  const std::string_view bytes = AsBytes(part);
  ASSERT_TRUE(FromBytes<PartPacket>(bytes).has_value());
  EXPECT_EQ(FromBytes<PartPacket>(bytes)->form, HandleForm::kFile);
  EXPECT_FALSE(FromBytes<PartPacket>(bytes.substr(1)).has_value());
  EXPECT_FALSE(FromBytes<AskPacket>(bytes).has_value());
  EXPECT_TRUE(FrontOf<AskPacket>(bytes).has_value());
  EXPECT_FALSE(FrontOf<AskPacket>("short").has_value());
}

HostIdentity Here() {
  return {.hostname = "here",
          .boot_id = "boot",
          .net_namespace = 1,
          .pid_namespace = 2,
          .uid = 1000,
          .pid = 77,
          .start_time = 5};
}

TEST(CudaIpcWire, WhoIsAPeer) {
  HostIdentity there = Here();
  there.pid = 78;
  EXPECT_OK(CheckReachable(Here(), there));
  // Another host is nothing to worry about.
  there.boot_id = "other";
  EXPECT_TRUE(Fails(CheckReachable(Here(), there), absl::StatusCode::kUnavailable, {"one host"}));
  HostIdentity unknown = Here();
  unknown.boot_id.clear();
  EXPECT_TRUE(Fails(CheckReachable(unknown, unknown), absl::StatusCode::kUnavailable));
  // One of this host that is out of reach is, with the remedy.
  const auto refused = [](auto change, const char* why) {
    HostIdentity other = Here();
    change(other);
    return Fails(CheckReachable(Here(), other), absl::StatusCode::kFailedPrecondition, {why});
  };
  EXPECT_TRUE(refused([](HostIdentity& other) { other.uid = 0; }, "uid"));
  EXPECT_TRUE(refused([](HostIdentity& other) { other.net_namespace = 9; }, "--network=host"));
  EXPECT_TRUE(refused([](HostIdentity& other) { other.pid_namespace = 9; }, "--pid=host"));
}

}  // namespace
}  // namespace kvxfer::cuda_ipc
