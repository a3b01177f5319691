#include "tests/gpu/peer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

// What goes over the socket.
struct Text {
  uint32_t size = 0;
  char data[16 * 1024] = {};

  static Text Of(const std::string& text) {
    Text out;
    out.size = static_cast<uint32_t>(std::min(text.size(), sizeof(out.data)));
    std::memcpy(out.data, text.data(), out.size);
    return out;
  }
  std::string str() const { return {data, size}; }
};
struct Setup {
  Way way{};
  uint64_t bytes = 0;
};
enum class What : uint8_t { kFill, kLook, kWrite };
struct Command {
  What what = What::kFill;
  Layout layout{};
  uint64_t seed = 0;
  CUdeviceptr there = 0;  // kWrite
};

size_t PiecesOf(uint64_t bytes) {
  const CUmemAllocationProp prop = PropOf(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  size_t least = 1;
  EXPECT_CUDA(CUDA_SUCCESS,
              cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return std::max<size_t>(2, (bytes + least - 1) / least);
}

PagedRegion Paged(const Layout& layout, CUdeviceptr at) {
  return {.base = at,
          .block_bytes = layout.block_bytes,
          .stride = layout.stride(),
          .count = layout.places()};
}

// Until it is killed.
int WriteForEver(GpuSide& side, const Command& command, Socket* socket) {
  const auto name = side.agent().AddPeer(socket->Receive<Text>().str());
  if (!name.ok()) return 3;
  for (bool first = true;; first = false) {
    std::vector<Transfer> all;
    for (int i = 0; i < 4; ++i) {
      auto one =
          PostWrite(side.agent(), *name, command.layout, side.at(), command.there, Patient());
      if (!one.ok()) return 4;
      all.push_back(*std::move(one));
    }
    for (const Transfer& one : all) {
      if (!one.Wait(kAmple).ok()) return 5;
      if (std::exchange(first, false)) socket->Send(1);
    }
  }
}

KVXFER_CONTRACT_CHILD(GpuTarget) {
  if (!WhyNoCuda().empty()) return 97;
  const Current current;
  const auto setup = socket->Receive<Setup>();
  auto side = GpuSide::Create(setup.way, "peer", setup.bytes);
  EXPECT_OK(side);
  const auto metadata = side.ok() ? (*side)->agent().Metadata() : side.status();
  EXPECT_OK(metadata);
  if (!metadata.ok()) return 1;
  socket->Send(Text::Of(*metadata));
  socket->Send((*side)->at());
  for (;;) {
    const auto command = socket->Receive<Command>();
    switch (command.what) {
      case What::kFill:
        FillNow((*side)->at(), (*side)->bytes(), command.seed);
        socket->Send(1);
        break;
      case What::kLook: {
        const std::vector<uint32_t> sources =
            SourcesOf(command.layout, command.layout.Places(true), command.layout.Places(false));
        socket->Send(Check(command.layout, (*side)->at(), sources, command.seed).Now());
        break;
      }
      case What::kWrite:
        return WriteForEver(**side, command, socket);
    }
  }
}

}  // namespace

std::string WhyNot(const Way& way) {
  const bool ipc = std::string_view(way.backend) == "cuda_ipc";
  if (ipc && !way.pieces && Attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) == 0) {
    return "this GPU has no IPC";
  }
  if (way.pieces &&
      Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0) {
    return "this GPU does not export memory as file descriptors";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<GpuSide>> GpuSide::Create(const Way& way, const std::string& name,
                                                         uint64_t bytes) {
  std::unique_ptr<GpuSide> side(new GpuSide(bytes));
  if (way.pieces) {
    side->pieces_.emplace(PiecesOf(bytes), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  } else {
    side->plain_.emplace(bytes);
  }
  FillNow(side->at(), bytes, 0);
  AgentOptions options;
  options.name = name;
  options.backends = {way.backend};
  auto agent = Agent::Create(options);
  if (!agent.ok()) return agent.status();
  side->agent_ = *std::move(agent);
  const MemorySpan span = {
      .data = reinterpret_cast<void*>(side->at()), .bytes = bytes, .kind = MemoryKind::kCuda};
  const auto region = side->agent_->RegisterMemory(span, Access::kReadWrite);
  if (!region.ok()) return region.status();
  side->region_ = *region;
  return side;
}

void GpuSide::FreeMemory() {
  plain_.reset();
  pieces_.reset();
}

TransferOptions Patient() {
  TransferOptions options;
  options.deadline = kAmple;
  return options;
}

absl::StatusOr<Transfer> PostWrite(Agent& agent, const std::string& peer, const Layout& layout,
                                   CUdeviceptr here, CUdeviceptr there,
                                   const TransferOptions& options) {
  const PagedRegion local = Paged(layout, here);
  const PagedRegion remote = Paged(layout, there);
  return agent.Write(peer,
                     {.local = {&local, 1},
                      .remote = {&remote, 1},
                      .local_ids = layout.Places(false),
                      .remote_ids = layout.Places(true)},
                     options);
}

absl::StatusOr<Transfer> PostRead(Agent& agent, const std::string& peer, const Layout& layout,
                                  CUdeviceptr here, CUdeviceptr there,
                                  const TransferOptions& options) {
  const PagedRegion local = Paged(layout, here);
  const PagedRegion remote = Paged(layout, there);
  return agent.Read(peer,
                    {.local = {&local, 1},
                     .remote = {&remote, 1},
                     .local_ids = layout.Places(false),
                     .remote_ids = layout.Places(true)},
                    options);
}

GpuPeer::GpuPeer(const Way& way, uint64_t bytes) : child_("GpuTarget") {
  child_.socket().Send(Setup{.way = way, .bytes = bytes});
  metadata_ = child_.socket().Receive<Text>().str();
  at_ = child_.socket().Receive<CUdeviceptr>();
}

absl::Status GpuPeer::MeetBy(GpuSide& side) { return side.agent().AddPeer(metadata_).status(); }

void GpuPeer::Fill(uint64_t seed) {
  child_.socket().Send(Command{.what = What::kFill, .seed = seed});
  child_.socket().Receive<int>();
}

gpu::CheckResult GpuPeer::Look(const Layout& layout, uint64_t seed) {
  child_.socket().Send(Command{.what = What::kLook, .layout = layout, .seed = seed});
  return child_.socket().Receive<gpu::CheckResult>();
}

void GpuPeer::BeginWriting(GpuSide& side, const Layout& layout) {
  const auto metadata = side.agent().Metadata();
  ASSERT_OK(metadata);
  child_.socket().Send(Command{.what = What::kWrite, .layout = layout, .there = side.at()});
  child_.socket().Send(Text::Of(*metadata));
  child_.socket().Receive<int>();
}

}  // namespace kvxfer::testing
