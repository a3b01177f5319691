#include "tests/support/send_path.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include "src/agent/engine/agent_factory.h"
#include "src/core/base/strings.h"
#include "tests/support/null_backend.h"
#include "tests/support/null_device.h"

namespace kvxfer::testing {
namespace {

constexpr Duration kLong = std::chrono::minutes(5);  // also under valgrind

absl::StatusOr<std::unique_ptr<Agent>> Registered(absl::StatusOr<std::unique_ptr<Agent>> agent,
                                                  const MemorySpan& span) {
  if (!agent.ok()) return agent;
  auto region = (*agent)->RegisterMemory(span, Access::kReadWrite);
  if (!region.ok()) return region.status();
  return agent;
}

}  // namespace

std::vector<uint32_t> PermutedIds(uint32_t ids, uint32_t seed) {
  std::vector<uint32_t> all(ids);
  std::iota(all.begin(), all.end(), 0u);
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  return all;
}

absl::StatusOr<std::string> ConnectNull(Agent& from, const Agent& to) {
  auto metadata = to.Metadata();
  if (!metadata.ok()) return metadata.status();
  auto peer = from.AddPeer(*metadata);
  if (!peer.ok()) return peer;
  auto hello = from.Notify(*peer, "hello");
  if (!hello.ok()) return hello.status();
  if (auto status = hello->Wait(kLong); !status.ok()) return status;
  return peer;
}

absl::StatusOr<std::unique_ptr<Agent>> MakeNullAgent(std::string name, const MemorySpan& span,
                                                     bool verbs, Duration spin) {
  AgentOptions options;
  options.name = std::move(name);
  options.backends = {verbs ? "verbs" : "null"};
  if (verbs) options.control = ControlCarrier::kTcp;
  options.spin = spin;
  return Registered(
      internal::AgentFactory::Create(options, verbs ? MakeNullVerbs : MakeNullBackend), span);
}

absl::StatusOr<std::unique_ptr<SendPath>> SendPath::Create(const SendPathShape& shape) {
  std::unique_ptr<SendPath> path(new SendPath(shape));
  if (auto status = path->Init(); !status.ok()) return status;
  return path;
}

absl::Status SendPath::MakeMemory() {
  const size_t bytes = shape_.block_bytes * shape_.ids * shape_.regions;
  if (shape_.backend == SendPathShape::Backend::kCudaIpc) {
    auto memory = GpuSpace::Allocate(bytes);
    if (!memory.ok()) return memory.status();
    gpu_ = *std::move(memory);
    memory_ = gpu_->span();
    return absl::OkStatus();
  }
  void* memory =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(ToAbsl(ErrnoText("mmap of address space", errno)));
  }
  memory_ = {.data = memory, .bytes = bytes};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Agent>> SendPath::MakeAgent(std::string name) const {
  if (shape_.backend != SendPathShape::Backend::kCudaIpc) {
    return MakeNullAgent(std::move(name), memory_,
                         shape_.backend == SendPathShape::Backend::kVerbs);
  }
  return Registered(Agent::Create({.name = std::move(name), .backends = {"cuda_ipc"}}), memory_);
}

absl::Status SendPath::Init() {
  if (auto status = MakeMemory(); !status.ok()) return status;
  const uint64_t region_bytes = shape_.block_bytes * shape_.ids;
  for (uint32_t i = 0; i < shape_.regions; ++i) {
    regions_.push_back({.base = reinterpret_cast<uintptr_t>(memory_.data) + i * region_bytes,
                        .block_bytes = shape_.block_bytes,
                        .stride = shape_.block_bytes,
                        .count = shape_.ids});
  }
  local_ids_ = PermutedIds(shape_.ids, 1);
  remote_ids_ = PermutedIds(shape_.ids, 2);

  for (auto [name, agent] : {std::pair{"source", &source_}, std::pair{"target", &target_}}) {
    auto made = MakeAgent(name);
    if (!made.ok()) return made.status();
    *agent = *std::move(made);
  }
  for (uint32_t i = 0; i < shape_.idle_peers; ++i) {
    if (auto status = AddIdlePeer(); !status.ok()) return status;
  }
  auto peer = ConnectNull(*source_, *target_);
  if (!peer.ok()) return peer.status();
  peer_ = *std::move(peer);
  if (auto status = TakeNotification(); !status.ok()) return status;
  return Send();  // once data has passed, nothing of the connection is left to be made
}

absl::Status SendPath::AddIdlePeer() {
  auto made = MakeAgent(absl::StrCat("idle-", idle_.size()));
  if (!made.ok()) return made.status();
  Agent& idle = *idle_.emplace_back(*std::move(made));
  if (auto peer = ConnectNull(*source_, idle); !peer.ok()) return peer.status();
  if (auto peer = ConnectNull(idle, *target_); !peer.ok()) return peer.status();
  return TakeNotification();
}

SendPath::~SendPath() {
  idle_.clear();
  source_.reset();
  target_.reset();
  if (memory_.data != nullptr && gpu_ == nullptr) ::munmap(memory_.data, memory_.bytes);
}

absl::StatusOr<Transfer> SendPath::Submit(const TransferOptions& options) {
  return source_->Write(peer_,
                        PagedBlocks{.local = regions_,
                                    .remote = regions_,
                                    .local_ids = local_ids_,
                                    .remote_ids = remote_ids_},
                        options);
}

absl::Status SendPath::Send(const TransferOptions& options) {
  auto transfer = Submit(options);
  return transfer.ok() ? transfer->Wait(kLong) : transfer.status();
}

absl::Status SendPath::TakeNotification() { return target_->WaitNotification(kLong).status(); }

}  // namespace kvxfer::testing
