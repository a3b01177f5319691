// What the tests of the cuda_ipc backend share: GPU memory of every kind over the stand-in driver,
// regions of it, and a peer in a process of its own.
#ifndef KVXFER_TESTS_UNIT_BACKENDS_CUDA_IPC_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_CUDA_IPC_UTIL_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/backend.h"
#include "src/cuda/driver.h"
#include "tests/support/backend_pair.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {

using Piece = kvxfer::Run;  // in a test, Run is a method of ::testing::Test

// The process ends without the stand-in driver.
const cuda::Driver& StandIn();
const cuda_driver::Hooks& StandInHooks();
// What is there when all that was let go of is closed.
cuda_driver::LiveObjects LiveNow();

// GPU memory, zeroed.
class GpuMemory {
 public:
  // Of cuMemAlloc.
  static GpuMemory Plain(size_t bytes, int device = 0);
  // Of cuMemCreate: `chunks` of the least size side by side, open to `device`.
  static GpuMemory Virtual(size_t chunks, cuda::api::CUmemAllocationHandleType handles,
                           int device = 0);
  static GpuMemory Pool(size_t bytes);
  static GpuMemory Managed(size_t bytes);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  ~GpuMemory() { Free(); }
  void Free();

  uint64_t at() const { return at_; }
  size_t size() const { return bytes_; }
  int device() const { return device_; }
  // Where the CPU sees it.
  std::span<std::byte> bytes() const {
    return {StandInHooks().kvxfer_standin_alias(at_, bytes_), bytes_};
  }
  MemorySpan span() const { return Part(0, bytes_); }
  MemorySpan Part(uint64_t offset, size_t bytes) const {
    return {.data = reinterpret_cast<void*>(at_ + offset),
            .bytes = bytes,
            .kind = MemoryKind::kCuda,
            .device_id = device_};
  }

 private:
  uint64_t at_ = 0;
  size_t bytes_ = 0;
  int device_ = 0;
  std::function<void()> free_;
};

inline uint64_t Number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

// One registered span.
struct GpuRegion {
  RegionId id = RegionId::kNone;
  LocalRegion local;
  std::unique_ptr<Registration> registration;

  RemoteRegion remote() const;
  std::string key() const { return registration->key; }
};
absl::StatusOr<GpuRegion> RegisterGpu(Backend& backend, const MemorySpan& span, uint32_t id,
                                      Access access = Access::kReadWrite);

// The same offsets at both sides.
inline Piece RunOf(const GpuRegion& local, const RemoteRegion& remote, const RemoteKey* key,
                   uint64_t offset, uint64_t bytes) {
  return {.local = local.remote().base + offset,
          .remote = remote.base + offset,
          .bytes = bytes,
          .registration = local.registration.get(),
          .key = key};
}

// The target of a connection, in a process of its own that turns all the time. Memory is named by a
// word: "plain", "virtual", "fabric" (virtual, with that kind of handle only), "other" (plain, of
// GPU 1).
class IpcPeer {
 public:
  static absl::StatusOr<std::unique_ptr<IpcPeer>> Start();
  ~IpcPeer();

  const ChildProcess& process() const { return process_; }
  const std::string& address() const { return address_; }
  const HostIdentity& host() const { return host_; }

  // Region `index` of the peer, counted from 0.
  absl::StatusOr<RemoteRegion> Register(const std::string& memory, size_t bytes,
                                        uint64_t offset = 0);
  // Another region of the memory that was made last.
  absl::StatusOr<RemoteRegion> RegisterPart(uint64_t offset, size_t bytes);
  const std::string& key(const RemoteRegion& region) const {
    return keys_[static_cast<size_t>(region.id) - 1];
  }
  absl::Status Deregister(const RemoteRegion& region);
  // Of the memory made last.
  absl::Status Fill(uint64_t seed);
  absl::StatusOr<bool> Holds(uint64_t seed, size_t bytes);
  // Fails the next of `calls` there.
  absl::Status FailNext(const std::string& call, int error);

  absl::StatusOr<Fields> Call(const Fields& request);

 private:
  IpcPeer(ChildProcess process, int fd) : process_(std::move(process)), fd_(fd) {}
  absl::StatusOr<RemoteRegion> Take(const absl::StatusOr<Fields>& answer, size_t bytes);

  ChildProcess process_;
  int fd_;
  std::string address_;
  HostIdentity host_;
  std::vector<std::string> keys_;
};

// What this process holds of others' memory.
inline uint64_t Opened() {
  const cuda_driver::LiveObjects live = LiveNow();
  return live.ipc_mappings + live.mappings + live.handles + live.reservations;
}

// An initiator here, connected to a peer.
class Dialled {
 public:
  explicit Dialled(const IpcPeer& peer) : Dialled(peer.address(), peer.host()) {}
  Dialled(const std::string& address, const HostIdentity& host) {
    auto made = Party::Make(CudaIpcFlavour(), "initiator");
    EXPECT_OK(made);
    party_ = *std::move(made);
    Dial(address, host);
  }
  ~Dialled() {
    keys_.clear();
    for (auto& link : party_->links) {
      if (!link->down) link->endpoint->Shutdown(absl::CancelledError("the test is over"));
      EXPECT_TRUE(Until([&] { return link->down; }));
    }
  }
  void Dial(const std::string& address, const HostIdentity& host) {
    auto endpoint = party_->backend().Connect(address, host);
    EXPECT_OK(endpoint);
    party_->links.push_back(std::make_unique<TestLink>());
    TestLink& link = *party_->links.back();
    link.endpoint = *std::move(endpoint);
    EXPECT_TRUE(Until([&] { return !link.messages.empty() || link.down; }));
    EXPECT_FALSE(link.down) << link.why;
  }

  Party& party() { return *party_; }
  TestLink& link(size_t i = 0) { return *party_->links[i]; }
  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      party_->Turn();
      return done();
    });
  }
  absl::Status Register(const MemorySpan& span) {
    auto region = RegisterGpu(party_->backend(), span, 1);
    if (!region.ok()) return region.status();
    local_ = *std::move(region);
    return absl::OkStatus();
  }
  // Kept here; null where it failed, and `why` says how.
  const RemoteKey* Import(const RemoteRegion& region, const std::string& key,
                          absl::Status* why = nullptr, size_t over = 0) {
    absl::StatusOr<std::unique_ptr<RemoteKey>> made;
    const bool known = Until([&] {
      made = link(over).endpoint->Import(region, key);
      return !absl::IsUnavailable(made.status());
    });
    if (why != nullptr) *why = made.status();
    if (why == nullptr) {
      EXPECT_OK(made);
    }
    if (!known || !made.ok()) return nullptr;
    keys_.push_back(*std::move(made));
    return keys_.back().get();
  }
  std::vector<std::unique_ptr<RemoteKey>>& keys() { return keys_; }
  Piece RunAt(const RemoteRegion& region, const RemoteKey* key, uint64_t offset, uint64_t bytes) {
    return RunOf(local_, region, key, offset, bytes);
  }
  // In ops as large as may be.
  absl::Status Move(OpKind kind, const std::vector<Piece>& runs) {
    const Op op = link().Make(kind, 1, runs);
    if (!Until([&] {
          return link().Post({&op, 1}) == 1 || link().down;
        }) ||
        !Until([&] { return link().ended.contains(op.id) || link().down; })) {
      return absl::DeadlineExceededError("the op does not end");
    }
    return link().ended.contains(op.id) ? link().ended[op.id] : link().why;
  }

 private:
  std::unique_ptr<Party> party_;
  GpuRegion local_;
  std::vector<std::unique_ptr<RemoteKey>> keys_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_BACKENDS_CUDA_IPC_UTIL_H_
