// What the parts of a session stand on, without a peer: backends that connect when a test says so,
// endpoints that keep what they are given, memory at both ends.

#ifndef KVXFER_TESTS_UNIT_AGENT_SESSION_FAKE_PEER_H_
#define KVXFER_TESTS_UNIT_AGENT_SESSION_FAKE_PEER_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/link.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/remote_regions.h"
#include "src/core/protocol/metadata.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {

inline constexpr Duration kMs = std::chrono::milliseconds(1);
inline constexpr Duration kTimeout = 1000 * kMs;  // AgentOptions::connect_timeout
inline constexpr RegionId kHostRegion{1};
inline constexpr RegionId kCudaRegion{2};

class FakeEndpoint : public Endpoint {
 public:
  EndpointInfo Describe() const override { return {.path = "a wire", .rails = rails}; }
  void Authorize() override {}
  Posted Post(const Op& op) override {
    if (space == 0) return false;
    --space;
    ops.push_back(op);
    return done_at_once ? Posted::Done() : Posted(true);
  }
  bool Send(std::span<const std::byte> message) override {
    if (messages == 0) return false;
    --messages;
    sent.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
    return true;
  }
  void Fence(FenceScope scope) override { fences.push_back(scope); }
  void ReopenRail(uint32_t rail) override { reopened.push_back(rail); }
  void Shutdown(absl::Status why) override { shut = std::move(why); }
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override {
    ++imports;
    imported = std::string(key);
    if (!imports_as.ok()) return imports_as;
    // Expect nobody to use a key that is closed.
    struct Key : RemoteKey {
      Key(std::set<RegionId>* open_keys, RegionId region_id) : open(open_keys), id(region_id) {
        open->insert(id);
      }
      ~Key() override { open->erase(id); }
      MappedRegion Mapped() const override { return mapped; }
      MappedRegion mapped{};
      std::set<RegionId>* const open;
      const RegionId id;
    };
    auto made = std::make_unique<Key>(&open, region.id);
    made->mapped = mapped;
    return made;
  }
  std::shared_ptr<CopyHold> HoldOpen() override { return hold; }

  std::vector<RailInfo> rails{{.name = "r0"}};
  size_t space = 1000;  // for ops
  bool done_at_once = false;
  size_t messages = 1000;  // for messages
  std::vector<Op> ops{};
  std::vector<std::string> sent{};
  std::vector<FenceScope> fences{};
  std::vector<uint32_t> reopened{};
  absl::Status shut{};
  absl::Status imports_as = absl::UnimplementedError("no keys");
  int imports = 0;
  std::string imported{};     // the key of the last one
  std::set<RegionId> open{};  // regions whose keys are open
  MappedRegion mapped{};      // what keys say
  std::shared_ptr<CopyHold> hold{};
};

class FakeBackend : public Backend {
 public:
  FakeBackend(std::string_view name, uint32_t kinds) {
    info_.name = name;
    info_.capabilities.memory_kinds = kinds;
  }
  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view /*address*/,
                         const HostIdentity& /*host*/) const override {
    return reachable;
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view /*address*/,
                                                    const HostIdentity& /*host*/) override {
    ++dials;
    if (!connects.ok()) return connects;
    return std::make_unique<FakeEndpoint>();
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& /*region*/) override {
    return std::make_unique<Registration>();
  }
  size_t Poll(std::span<Event> /*out*/, Input /*input*/) override { return 0; }
  bool Arm() override { return true; }

  Capabilities& capabilities_now() { return info_.capabilities; }

  absl::Status reachable{};
  absl::Status connects{};
  int dials = 0;

 private:
  BackendInfo info_{};
};

inline constexpr uint32_t kHostOnly = BitOf(MemoryKind::kHost);
inline constexpr uint32_t kCudaOnly = BitOf(MemoryKind::kCuda);

inline AgentOptions Options() {
  AgentOptions options;
  options.connect_timeout = kTimeout;
  return options;
}

// The agent's side and what it knows of the peer.
class FakePeer {
 protected:
  static constexpr uint64_t kBytes = 4096;  // of a region

  // Before anything else is made.
  void SetControl(ControlCarrier control) {
    const_cast<AgentOptions&>(runtime_.options).control = control;
  }

  FakePeer() : runtime_(Options()) {
    metadata_.name = "decode-0";
    metadata_.host.hostname = "there";
  }

  // A backend of this agent, which the peer offers too.
  FakeBackend& Both(std::string_view name, uint32_t kinds = kHostOnly) {
    FakeBackend& backend = Here(name, kinds);
    metadata_.backends.push_back({.backend = std::string(name), .address = "somewhere"});
    return backend;
  }
  FakeBackend& Here(std::string_view name, uint32_t kinds = kHostOnly) {
    auto backend = std::make_unique<FakeBackend>(name, kinds);
    FakeBackend& made = *backend;
    runtime_.backends.push_back(std::move(backend));
    return made;
  }

  // Registers a region of each kind at both ends; the peer has a key for GPU memory for each of
  // `native`.
  void MakeRegions(const std::vector<std::string>& native = {}) {
    Register(memory_[0], MemoryKind::kHost);
    Register(memory_[1], MemoryKind::kCuda);
    for (const RegionId id : {kHostRegion, kCudaRegion}) {
      AgentMetadata::Region region{.region = {.id = id,
                                              .base = 0x10000 * static_cast<uint64_t>(id),
                                              .bytes = kBytes,
                                              .access = Access::kReadWrite}};
      if (id == kCudaRegion) {
        region.region.kind = MemoryKind::kCuda;
        for (const std::string& name : native) region.keys[name] = "key";
      }
      metadata_.regions.push_back(std::move(region));
    }
  }
  // Both ends have staging memory, which every backend takes that takes host memory.
  void MakeStaging() {
    Register(memory_[2], MemoryKind::kHost, true);
    metadata_.regions.push_back(
        {.region = {.id = RegionId{9}, .bytes = Staging::kMinBytes, .access = Access::kReadWrite},
         .staging = true});
  }

  void Plan(internal::TransferRecord& record, MemoryKind kind) {
    regions_.Learn(metadata_);
    const bool cuda = kind == MemoryKind::kCuda;
    record.local = runtime_.memory.table();
    record.remote = regions_.table();
    record.posted = now_;
    record.cuda = cuda;
    const Descriptor local{.address = reinterpret_cast<uint64_t>(memory_[cuda ? 1 : 0].data()),
                           .bytes = kBytes};
    const Descriptor remote{.address = cuda ? 0x20000u : 0x10000u, .bytes = kBytes};
    auto blocks = BlockList::FromDescriptors({.local = {&local, 1}, .remote = {&remote, 1}},
                                             Direction::kWrite, *record.local, *record.remote);
    ASSERT_OK(blocks);
    record.blocks = *std::move(blocks);
  }

  Runtime runtime_;
  AgentMetadata metadata_{};
  RemoteRegions regions_;
  std::array<std::vector<std::byte>, 3> memory_{std::vector<std::byte>(kBytes),
                                                std::vector<std::byte>(kBytes),
                                                std::vector<std::byte>(kBytes)};
  Time now_ = Time{} + 1000 * kTimeout;

 private:
  void Register(std::vector<std::byte>& memory, MemoryKind kind, bool is_staging = false) {
    MemoryRegistry& registry = runtime_.memory;
    const MemorySpan span{.data = memory.data(), .bytes = memory.size(), .kind = kind};
    auto added = registry.Add(registry.Make(span, Access::kReadWrite, runtime_.backends),
                              runtime_.backends, {.is_staging = is_staging});
    ASSERT_OK(added);
    registry.Publish({&*added, 1});
  }
};

// A link whose endpoint the test sees.
class FakeLink : public LinkUser {
 public:
  explicit FakeLink(size_t backend = 0, uint64_t number = 1, size_t rails = 1) {
    auto made = std::make_unique<FakeEndpoint>();
    made->rails.resize(rails);
    endpoint = made.get();
    link = std::make_unique<Link>(this, number, backend, true, &measure, std::move(made));
  }
  // Up, as its session has it.
  void GoUp(Time now) {
    link->LearnRails(kTimeout, now);
    link->state = Link::State::kUp;
    link->was_up = true;
    link->heard = now;
  }

  PathMeasure measure{};
  FakeEndpoint* endpoint = nullptr;
  std::unique_ptr<Link> link{};

 private:
  void OnLinkEvent(Link& /*link*/, Event& /*event*/) override {}
};

// The paths to the peer; their user does nothing with what links say.
class FakePaths : public FakePeer, public PathSet::User {
 protected:
  PathSet& Paths() {
    if (paths_ == nullptr) {
      regions_.Learn(metadata_);
      paths_ = std::make_unique<PathSet>(&runtime_, &metadata_, &regions_, this);
    }
    return *paths_;
  }
  // The link that the first dialled path makes.
  Link& Dial() {
    EXPECT_OK(Paths().LinkForMessages(now_, now_));
    Link* made = nullptr;
    Paths().ForEachLink([&](Link& link) { made = &link; });
    return *made;
  }
  // What its handshake would do.
  void GoUp(Link& link) {
    link.LearnRails(kTimeout, now_);
    link.state = Link::State::kUp;
    link.was_up = true;
    link.heard = now_;
    link.prove_by = now_ + kTimeout;
  }
  void Prove(Link& link) {
    GoUp(link);
    Paths().OnProven(link);
  }
  static FakeEndpoint& EndpointOf(Link& link) { return static_cast<FakeEndpoint&>(*link.endpoint); }

  void OnLinkEvent(Link& /*link*/, Event& /*event*/) override {}
  bool MayConnect() const override { return may_connect_; }
  bool PeerIsConnected() const override { return peer_is_connected_; }
  bool MaySpeak() const override { return may_speak_; }

  std::unique_ptr<PathSet> paths_;
  bool may_connect_ = true;
  bool may_speak_ = false;
  bool peer_is_connected_ = false;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_AGENT_SESSION_FAKE_PEER_H_
