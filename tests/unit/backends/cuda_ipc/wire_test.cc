// What two cuda_ipc backends say to each other, and whom they take for a peer.
#include "src/backends/cuda_ipc/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_macros.h"

namespace kvxfer::cuda_ipc {
namespace {

using ::kvxfer::testing::Fails;

TEST(CudaIpcWire, AddressesComeBack) {
  const MetadataAddress at{
      .ipc_namespace = 4026531839, .listener = "kvxfer-cuda-a-b", .control = "1;x;y"};
  ASSERT_OK_AND_ASSIGN(const MetadataAddress back, DecodeMetadataAddress(Encode(at)));
  EXPECT_EQ(back.ipc_namespace, at.ipc_namespace);
  EXPECT_EQ(back.listener, at.listener);
  EXPECT_EQ(back.control, at.control);
  for (const std::string& damaged :
       {std::string(), std::string("2|1|desk|1;x;y"), std::string("1|x|desk|1;x;y"),
        std::string("1|1||1;x;y"), std::string("1|1|desk"),
        "1|1|" + std::string(107, 'd') + "|1;x;y"}) {
    EXPECT_TRUE(Fails(DecodeMetadataAddress(damaged), absl::StatusCode::kInvalidArgument))
        << damaged;
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
  const auto decode = [](std::string_view frame) {
    return Decode(std::as_bytes(std::span(frame)));
  };
  const std::string frame = Encode(hello);
  EXPECT_EQ(frame.size(), 17u);
  ASSERT_OK_AND_ASSIGN(const Frame back, decode(frame));
  ASSERT_TRUE(std::holds_alternative<Hello>(back));
  EXPECT_EQ(std::get<Hello>(back).word, hello.word);
  EXPECT_FALSE(decode(frame.substr(0, 16)).ok());
  const std::string joined = Encode(Joined{});
  EXPECT_EQ(joined.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const Frame other, decode(joined));
  EXPECT_TRUE(std::holds_alternative<Joined>(other));
  EXPECT_FALSE(decode({}).ok());
  EXPECT_FALSE(decode(joined + "x").ok());
}

TEST(CudaIpcWire, BodiesOfAnotherLengthAreNone) {
  const PartPacket part{.region = 3, .form = HandleForm::kFile};
  const std::string bytes = wire::Encode(part);
  EXPECT_EQ(bytes.size(), 120u);
  ASSERT_TRUE(wire::TryDecode<PartPacket>(bytes).has_value());
  EXPECT_EQ(wire::TryDecode<PartPacket>(bytes)->form, HandleForm::kFile);
  EXPECT_FALSE(wire::TryDecode<PartPacket>(bytes.substr(1)).has_value());
  EXPECT_FALSE(wire::TryDecode<AskPacket>(bytes).has_value());
  const std::string refused = wire::Encode(RefusedPacket{.region = 7, .code = 3, .why = "gone"});
  EXPECT_EQ(refused.size(), 20u);
  EXPECT_EQ(wire::TryDecode<RefusedPacket>(refused)->why, "gone");
  EXPECT_FALSE(wire::TryDecode<RefusedPacket>("short").has_value());
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
