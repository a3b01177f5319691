// The example of each public header, as it stands there, compiled and run.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "kvxfer/backend.h"
#include "kvxfer/block_range.h"
#include "kvxfer/event.h"
#include "kvxfer/log.h"
#include "kvxfer/memory.h"
#include "kvxfer/metadata.h"
#include "kvxfer/notification.h"
#include "kvxfer/options.h"
#include "kvxfer/peer.h"
#include "kvxfer/plugin.h"
#include "kvxfer/transfer.h"
#include "kvxfer/types.h"
#include "kvxfer/version.h"

// The examples name the members that matter; g++ would like all of them.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace {

using kvxfer::Access;

void StartDecoding(const std::string& payload) { EXPECT_EQ(payload, "request 7"); }

absl::Status RunExamples() {
  constexpr size_t bytes = 64 * 1024;
  std::vector<std::byte> memory(bytes, std::byte{7});
  std::byte* const cache = memory.data();

  // agent.h, first half; memory.h gives the target's memory.
  auto agent = kvxfer::Agent::Create({.name = "prefill-0"});
  if (!agent.ok()) return agent.status();
  auto region = (*agent)->RegisterMemory({.data = cache, .bytes = bytes}, Access::kRemoteRead);
  if (!region.ok()) return region.status();

  auto decode = kvxfer::Agent::Create({.name = "decode-0"});
  if (!decode.ok()) return decode.status();
  auto buffer = kvxfer::HostBuffer::Allocate(1 << 20);
  if (!buffer.ok()) return buffer.status();
  auto target = (*decode)->RegisterMemory(buffer->span(), kvxfer::Access::kReadWrite);
  if (!target.ok()) return target.status();
  auto metadata_of_decode_or = (*decode)->Metadata();
  if (!metadata_of_decode_or.ok()) return metadata_of_decode_or.status();
  const std::string& metadata_of_decode = *metadata_of_decode_or;

  const std::array from{kvxfer::Descriptor{reinterpret_cast<uint64_t>(cache), bytes}};
  const std::array to{kvxfer::Descriptor{reinterpret_cast<uint64_t>(buffer->data()), bytes}};
  const kvxfer::DescriptorBlocks blocks{.local = from, .remote = to};

  // agent.h, second half.
  auto peer = (*agent)->AddPeer(metadata_of_decode);
  if (!peer.ok()) return peer.status();
  {
    auto transfer = (*agent)->Write(*peer, blocks, {.notification = "request 7"});
    if (!transfer.ok()) return transfer.status();
    absl::Status done = transfer->Wait(std::chrono::seconds(5));
    if (!done.ok()) return done;
  }
  EXPECT_EQ(buffer->data()[bytes - 1], std::byte{7});
  EXPECT_EQ(buffer->data()[bytes], std::byte{0});

  // notification.h
  {
    auto n = (*decode)->WaitNotification(std::chrono::seconds(1));
    if (n.ok()) StartDecoding(n->payload);
    if (!n.ok()) return n.status();
  }
  // peer.h
  auto why = (*agent)->Explain("decode-0");
  if (why.ok()) std::puts(why->ToString().c_str());
  if (!why.ok()) return why.status();

  // event.h
  {
    std::vector<uint64_t> finished;
    const auto Finish = [&](uint64_t word) { finished.push_back(word); };
    auto transfer = (*agent)->Write(*peer, blocks, {.user_word = 7});
    if (!transfer.ok()) return transfer.status();
    std::array<kvxfer::AgentEvent, 16> events;
    while (finished.empty()) {  // the peer's joining is an event, too
      auto count = (*agent)->WaitEvents(events, std::chrono::seconds(5));
      for (auto& event : std::span(events).first(count.value_or(0))) {
        if (auto* end = std::get_if<kvxfer::TransferEnd>(&event)) Finish(end->user_word);
      }
      if (!count.ok()) return count.status();
    }
    EXPECT_EQ(finished, std::vector<uint64_t>{7});
  }

  // transfer.h
  auto transfer = (*agent)->Write("decode-0", blocks, {.notification = "request 7"});
  if (!transfer.ok()) return transfer.status();
  absl::Status end = transfer->Wait(std::chrono::seconds(5));
  return end;
}

TEST(HeaderExamples, AgentMemoryNotificationPeerTransfer) {
  const absl::Status status = RunExamples();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(HeaderExamples, Options) {
  kvxfer::AgentOptions options;
  options.name = "prefill-0";
  options.listen = "0.0.0.0:0";
  auto agent = kvxfer::Agent::Create(options);
  ASSERT_TRUE(agent.ok()) << agent.status();
  EXPECT_EQ((*agent)->listen_address().rfind("0.0.0.0:", 0), 0u);
}

TEST(HeaderExamples, Metadata) {
  auto decode = kvxfer::Agent::Create({.name = "decode-0", .serve_metadata = true});
  ASSERT_TRUE(decode.ok()) << decode.status();
  auto prefill = kvxfer::Agent::Create({.name = "prefill-0"});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  kvxfer::Agent& agent = **prefill;
  auto metadata = kvxfer::FetchMetadata((*decode)->listen_address(), std::chrono::seconds(5));
  if (metadata.ok()) auto peer = agent.AddPeer(*metadata);
  EXPECT_TRUE(agent.Explain("decode-0").ok()) << metadata.status();
}

TEST(HeaderExamples, Types) {
  kvxfer::Incarnation a = kvxfer::Incarnation::Random();
  std::string text = a.ToString();  // 32 hex digits
  EXPECT_EQ(text.size(), 32u);
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(a, kvxfer::Incarnation::Random());
}

std::string last_line;
void MyLog(std::string_view line) { last_line = line; }

TEST(HeaderExamples, Log) {
  kvxfer::SetLogSink([](kvxfer::LogLevel, std::string_view line) { MyLog(line); });
  kvxfer::SetLogSink(nullptr);
}

// backend.h's, over an endpoint and a backend that do the least there is.
struct OneOpEndpoint final : kvxfer::Endpoint {
  kvxfer::EndpointInfo Describe() const override { return {.path = "example", .rails = {{}}}; }
  void Authorize() override {}
  kvxfer::Posted Post(const kvxfer::Op& op) override {
    if (posted != 0) return false;
    posted = op.id;
    return true;
  }
  bool Send(std::span<const std::byte>) override { return false; }
  void Fence(kvxfer::FenceScope) override {}
  void Shutdown(absl::Status) override {}
  absl::StatusOr<std::unique_ptr<kvxfer::RemoteKey>> Import(const kvxfer::RemoteRegion&,
                                                            std::string_view) override {
    return std::make_unique<kvxfer::RemoteKey>();
  }
  uint64_t posted = 0;
};

struct OneOpBackend final : kvxfer::Backend {
  explicit OneOpBackend(OneOpEndpoint* only) : endpoint(only) {}
  const kvxfer::BackendInfo& Describe() const override { return info; }
  absl::Status Reachable(std::string_view, const kvxfer::HostIdentity&) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kvxfer::Endpoint>> Connect(std::string_view,
                                                            const kvxfer::HostIdentity&) override {
    return absl::UnavailableError("example");
  }
  absl::StatusOr<std::unique_ptr<kvxfer::Registration>> Register(
      const kvxfer::LocalRegion&) override {
    return std::make_unique<kvxfer::Registration>();
  }
  size_t Poll(std::span<kvxfer::Event> out, kvxfer::Input) override {
    if (endpoint->posted == 0 || out.empty()) return 0;
    out[0].kind = kvxfer::EventKind::kCompletion;
    out[0].id = std::exchange(endpoint->posted, 0);
    return 1;
  }
  bool Arm() override { return true; }
  OneOpEndpoint* endpoint;
  kvxfer::BackendInfo info{.name = "example"};
};

TEST(HeaderExamples, Backend) {
  OneOpEndpoint only;
  OneOpBackend one(&only);
  kvxfer::Endpoint* endpoint = &only;
  kvxfer::Backend* backend = &one;
  kvxfer::Op op{.id = 42};
  bool accepted = endpoint->Post(op);  // false is the back-pressure
  std::array<kvxfer::Event, 64> events;
  EXPECT_FALSE(endpoint->Post({.id = 43}));
  size_t n = backend->Poll(events, kvxfer::Input::kAll);  // its completion comes from here
  EXPECT_TRUE(accepted);
  ASSERT_EQ(n, 1u);
  EXPECT_EQ(events[0].id, 42u);
}

TEST(HeaderExamples, BlockRange) {
  std::string source = "blocks";
  std::string target = "      ";
  const std::array blocks{kvxfer::Block{.local = reinterpret_cast<uint64_t>(source.data()),
                                        .remote = reinterpret_cast<uint64_t>(target.data()),
                                        .bytes = source.size(),
                                        .local_region = 0,
                                        .remote_region = 0}};
  const std::array<const kvxfer::Registration*, 1> registrations{};
  const std::array<const kvxfer::RemoteKey*, 1> keys{};
  const kvxfer::BlockView view{.descriptors = blocks, .registrations = registrations, .keys = keys};
  const kvxfer::Op op{.blocks = {.view = &view, .bytes = source.size(), .pieces = 1}};
  for (kvxfer::RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const kvxfer::Run& run = walk.run();
    std::memcpy(reinterpret_cast<void*>(run.remote), reinterpret_cast<void*>(run.local), run.bytes);
  }
  EXPECT_EQ(target, "blocks");
}

absl::StatusOr<std::unique_ptr<kvxfer::Backend>> MakeWireBackend(const kvxfer::BackendContext&) {
  return absl::UnavailableError("an example");
}

TEST(HeaderExamples, Version) {
  EXPECT_GT(std::printf("built with kvxfer %s\n", kvxfer::kVersion), 18);
}

}  // namespace

KVXFER_BACKEND_PLUGIN(wire, MakeWireBackend)

TEST(HeaderExamples, Plugin) {
  const kvxfer::BackendPlugin* plugin = kvxfer_backend_plugin();
  EXPECT_EQ(plugin->magic, kvxfer::kPluginMagic);
  EXPECT_STREQ(plugin->name, "wire");
  EXPECT_EQ(plugin->make, &MakeWireBackend);
  EXPECT_EQ(plugin->toolchain, kvxfer::PluginToolchain());
}
