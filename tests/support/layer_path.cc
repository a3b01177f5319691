#include "tests/support/layer_path.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "src/core/base/strings.h"
#include "tests/support/send_path.h"

namespace kvxfer::testing {
namespace {

constexpr Duration kLong = std::chrono::minutes(5);  // also under valgrind
constexpr uint32_t kTokens = 16;                     // of one block
constexpr uint64_t kBlockBytes = 4096;               // of one layer

}  // namespace

absl::StatusOr<std::unique_ptr<LayerPath>> LayerPath::Create(const LayerPathShape& shape) {
  std::unique_ptr<LayerPath> path(new LayerPath(shape));
  if (auto status = path->Init(); !status.ok()) return status;
  return path;
}

LayerPath::~LayerPath() {
  driver_ = {};  // stops and joins it
  source_.reset();
  target_.reset();
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

absl::Status LayerPath::Init() {
  memory_bytes_ = kBlockBytes * shape_.blocks * shape_.layers;
  void* memory =
      ::mmap(nullptr, memory_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(ToAbsl(ErrnoText("mmap of address space", errno)));
  }
  memory_ = memory;
  local_ids_ = PermutedIds(shape_.blocks, 1);
  remote_ids_ = PermutedIds(shape_.blocks, 2);

  const KvModel model{.layers = shape_.layers, .heads = 1, .k_size = 64, .v_size = 64};
  const KvTensor tensor{
      .axes = "BNC", .shape = {shape_.blocks, kTokens, 128}, .strides = {kBlockBytes / 2, 128, 1}};
  const auto layout = KvLayout::FromTensors(model, {.layers = shape_.layers}, {&tensor, 1});
  if (!layout.ok()) return layout.status();
  const MemorySpan span{.data = memory_, .bytes = memory_bytes_};
  for (auto [name, agent] : {std::pair{"source", &source_}, std::pair{"target", &target_}}) {
    const bool spins = shape_.spins && agent == &source_;
    auto made = MakeNullAgent(name, span, false, spins ? kLong : Duration::zero());
    if (!made.ok()) return made.status();
    *agent = *std::move(made);
    if (auto status = AddCache(**agent, *layout); !status.ok()) return status;
  }
  auto peer = ConnectNull(*source_, *target_);
  if (!peer.ok()) return peer.status();
  group_ = {*std::move(peer)};
  if (shape_.spins) {
    driver_ = std::jthread([this](const std::stop_token& stop) {
      AgentEvent none;  // of this kind there is none: the time passes
      while (!stop.stop_requested()) {
        (void)source_->WaitEvents({&none, 1}, std::chrono::milliseconds(20),
                                  AgentEventKinds::kPeer);
      }
    });
  }
  return target_->WaitNotification(kLong).status();
}

absl::Status LayerPath::AddCache(Agent& agent, const KvLayout& layout) const {
  std::vector<uint64_t> tensors;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    tensors.push_back(reinterpret_cast<uintptr_t>(memory_) + layer * layout.tensor_bytes(0));
  }
  return agent.RegisterKvCache(CacheName("kv"), layout, tensors);
}

KvBlocks LayerPath::Blocks() const {
  return {.cache = CacheName("kv"),
          .local_ids = local_ids_,
          .remote_ids = remote_ids_,
          .tokens = uint64_t{kTokens} * shape_.blocks};
}

absl::Status LayerPath::Begin() {
  options_ = {.request = RequestName(absl::StrCat("request ", ++requests_)),
              .transfer = {.deadline = kLong}};
  if (!shape_.prepared) return absl::OkStatus();
  auto blocks = source_->PrepareBlocks(group_, Blocks());
  if (!blocks.ok()) return blocks.status();
  blocks_ = *std::move(blocks);
  return absl::OkStatus();
}

absl::Status LayerPath::Write(uint32_t layer) {
  KvBlocks plain = Blocks();
  plain.first_layer = layer;
  plain.layers = 1;
  auto transfer = shape_.prepared ? source_->WriteLayers(blocks_, layer, 1, options_)
                                  : source_->WriteBlocks(group_, plain, options_);
  if (!transfer.ok()) return transfer.status();
  transfers_.push_back(*std::move(transfer));
  return absl::OkStatus();
}

absl::Status LayerPath::Finish() {
  for (const Transfer& transfer : std::exchange(transfers_, {})) {
    while (transfer.Poll() == TransferState::kActive) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (!transfer.status().ok()) return transfer.status();
  }
  return target_->WaitNotification(kLong).status();
}

}  // namespace kvxfer::testing
