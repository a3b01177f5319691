#include "tests/unit/backends/cuda_ipc/util.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "src/core/base/host_identity.h"
#include "src/cuda/closer.h"
#include "tests/support/pattern.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names

void Must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", call, StandIn().Error(result, call).ToString().c_str());
  std::abort();
}
#define MUST(call) Must(StandIn().calls().call, #call)

}  // namespace

const cuda::Driver& StandIn() {
  const auto driver = cuda::Driver::Get();
  if (!driver.ok() || cuda_driver::FindHooks() == nullptr) {
    std::fprintf(stderr, "the tests of cuda_ipc need the stand-in driver in LD_LIBRARY_PATH\n");
    std::abort();
  }
  return **driver;
}

const cuda_driver::Hooks& StandInHooks() {
  StandIn();
  return *cuda_driver::FindHooks();
}

cuda_driver::LiveObjects LiveNow() {
  EXPECT_TRUE(Eventually(kAmple, [] { return !cuda::Closing(); }));
  cuda_driver::LiveObjects live;
  StandInHooks().kvxfer_standin_live(&live);
  return live;
}

GpuMemory GpuMemory::Plain(size_t bytes, int device) {
  GpuMemory memory;
  const cuda::ContextScope scope(StandIn(), device);
  CUdeviceptr at = 0;
  MUST(cuMemAlloc_v2(&at, bytes));
  memory.at_ = at;
  memory.bytes_ = bytes;
  memory.device_ = device;
  memory.free_ = [at, device] {
    const cuda::ContextScope again(StandIn(), device);
    MUST(cuMemFree_v2(at));
  };
  FillWith(memory.bytes(), std::byte{0});
  return memory;
}

GpuMemory GpuMemory::Virtual(size_t chunks, CUmemAllocationHandleType handles, int device) {
  const cuda::ContextScope scope(StandIn(), device);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = handles;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t chunk = 0;
  MUST(cuMemGetAllocationGranularity(&chunk, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = chunk * chunks;
  CUdeviceptr at = 0;
  MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> made(chunks);
  for (size_t i = 0; i < chunks; ++i) {
    MUST(cuMemCreate(&made[i], chunk, &prop, 0));
    MUST(cuMemMap(at + i * chunk, chunk, 0, made[i], 0));
  }
  const CUmemAccessDesc access{.location = prop.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(cuMemSetAccess(at, bytes, &access, 1));
  GpuMemory memory;
  memory.at_ = at;
  memory.bytes_ = bytes;
  memory.device_ = device;
  memory.free_ = [at, bytes, chunk, made, device] {
    const cuda::ContextScope again(StandIn(), device);
    for (size_t i = 0; i < made.size(); ++i) {
      MUST(cuMemUnmap(at + i * chunk, chunk));
      MUST(cuMemRelease(made[i]));
    }
    MUST(cuMemAddressFree(at, bytes));
  };
  FillWith(memory.bytes(), std::byte{0});
  return memory;
}

GpuMemory GpuMemory::Pool(size_t bytes) {
  GpuMemory memory;
  const cuda::ContextScope scope(StandIn(), 0);
  CUstream stream = nullptr;
  MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  CUdeviceptr at = 0;
  MUST(cuMemAllocAsync(&at, bytes, stream));
  MUST(cuStreamSynchronize(stream));
  memory.at_ = at;
  memory.bytes_ = bytes;
  memory.free_ = [at, stream] {
    const cuda::ContextScope again(StandIn(), 0);
    MUST(cuMemFreeAsync(at, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy_v2(stream));
  };
  return memory;
}

GpuMemory GpuMemory::Managed(size_t bytes) {
  GpuMemory memory;
  const cuda::ContextScope scope(StandIn(), 0);
  CUdeviceptr at = 0;
  MUST(cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL));
  memory.at_ = at;
  memory.bytes_ = bytes;
  memory.free_ = [at] {
    const cuda::ContextScope again(StandIn(), 0);
    MUST(cuMemFree_v2(at));
  };
  return memory;
}

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(free_, other.free_);
  return *this;
}

void GpuMemory::Free() {
  if (free_) std::exchange(free_, nullptr)();
}

RemoteRegion GpuRegion::remote() const {
  return {.id = id,
          .rkey = local.rkey,
          .base = reinterpret_cast<uint64_t>(local.span.data),
          .bytes = local.span.bytes,
          .kind = local.span.kind,
          .device_id = local.span.device_id,
          .access = local.access};
}

absl::StatusOr<GpuRegion> RegisterGpu(Backend& backend, const MemorySpan& span, uint32_t id,
                                      Access access) {
  GpuRegion out;
  out.id = RegionId{id};
  out.local = {.rkey = id * 0x9e3779b1u, .span = span, .access = access};
  auto registration = backend.Register(out.local);
  if (!registration.ok()) return registration.status();
  out.registration = *std::move(registration);
  return out;
}

namespace {

// The peer's side of IpcPeer.
class Served {
 public:
  Party& party() { return *party_; }

  absl::Status Make() {
    auto made = Party::Make(CudaIpcFlavour(), "peer");
    if (!made.ok()) return made.status();
    party_ = *std::move(made);
    return absl::OkStatus();
  }
  // One that has connected is let in, and greeted.
  void Greet() {
    for (; greeted_ < party_->links.size(); ++greeted_) {
      TestLink& link = *party_->links[greeted_];
      if (!link.Send("hello")) return;
      link.endpoint->Authorize();
    }
  }
  absl::StatusOr<Fields> Handle(const Fields& f) {
    if (f[0] == "register") {
      const size_t bytes = Number(f[2]);
      if (f[1] == "virtual" || f[1] == "fabric") {
        memory_.push_back(GpuMemory::Virtual((Number(f[3]) + bytes + (2 << 20) - 1) >> 21,
                                             f[1] == "fabric"
                                                 ? CU_MEM_HANDLE_TYPE_FABRIC
                                                 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
      } else {
        memory_.push_back(GpuMemory::Plain(Number(f[3]) + bytes, f[1] == "other" ? 1 : 0));
      }
      return Register(Number(f[3]), bytes);
    }
    if (f[0] == "part") return Register(Number(f[1]), Number(f[2]));
    if (f[0] == "deregister") {
      regions_[Number(f[1]) - 1].registration.reset();
      return Fields{};
    }
    if (f[0] == "fill") {
      Pattern(Number(f[1])).Fill(memory_.back().bytes());
      return Fields{};
    }
    if (f[0] == "holds") {
      const auto bytes = memory_.back().bytes().first(Number(f[2]));
      return Fields{Pattern(Number(f[1])).Mismatch(bytes) == kNoMismatch ? "yes" : "no"};
    }
    if (f[0] == "handle") {
      const cuda::ContextScope scope(StandIn(), memory_.back().device());
      CUipcMemHandle handle{};
      MUST(cuIpcGetMemHandle(&handle, memory_.back().at()));
      return Fields{std::string(handle.reserved, sizeof(handle.reserved))};
    }
    if (f[0] == "fail") {
      StandInHooks().kvxfer_standin_fail(f[1].c_str(), 1, static_cast<int>(Number(f[2])));
      return Fields{};
    }
    return absl::InvalidArgumentError(f[0]);
  }

 private:
  absl::StatusOr<Fields> Register(uint64_t offset, size_t bytes) {
    auto region = RegisterGpu(party_->backend(), memory_.back().Part(offset, bytes),
                              static_cast<uint32_t>(regions_.size() + 1));
    if (!region.ok()) return region.status();
    regions_.push_back(*std::move(region));
    const RemoteRegion told = regions_.back().remote();
    return Fields{std::to_string(static_cast<uint32_t>(told.id)), std::to_string(told.rkey),
                  std::to_string(told.base), regions_.back().key()};
  }

  std::deque<GpuMemory> memory_;
  std::unique_ptr<Party> party_;
  std::deque<GpuRegion> regions_;
  size_t greeted_ = 0;
};

KVXFER_CHILD(CudaIpcPeer) {
  const int fd = std::atoi(arguments.back().c_str());
  Served served;
  CHILD_EXPECT(served.Make().ok());
  Party& party = served.party();
  CHILD_EXPECT(SendFields(fd, {party.backend().Describe().address, std::to_string(party.host().pid),
                               std::to_string(party.host().start_time)})
                   .ok());
  while (true) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 0) > 0) {
      const absl::StatusOr<Fields> request = ReceiveFields(fd);
      if (!request.ok()) return 0;
      absl::StatusOr<Fields> answer = served.Handle(*request);
      Fields out{answer.ok() ? "ok" : answer.status().ToString()};
      if (answer.ok()) out.insert(out.end(), answer->begin(), answer->end());
      CHILD_EXPECT(SendFields(fd, out).ok());
    }
    if (party.Turn() == 0) party.Sleep(std::chrono::milliseconds(1), fd);
    served.Greet();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<IpcPeer>> IpcPeer::Start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError("socketpair");
  }
  auto process = ChildProcess::Start("CudaIpcPeer", {}, ends[1]);
  ::close(ends[1]);
  if (!process.ok()) {
    ::close(ends[0]);
    return process.status();
  }
  std::unique_ptr<IpcPeer> peer(new IpcPeer(*std::move(process), ends[0]));
  const absl::StatusOr<Fields> born = ReceiveFields(peer->fd_);
  if (!born.ok()) return born.status();
  peer->address_ = born->at(0);
  peer->host_ = ReadHostIdentity();
  peer->host_.pid = static_cast<uint32_t>(Number(born->at(1)));
  peer->host_.start_time = Number(born->at(2));
  return peer;
}

IpcPeer::~IpcPeer() { ::close(fd_); }

absl::StatusOr<Fields> IpcPeer::Call(const Fields& request) {
  if (absl::Status sent = SendFields(fd_, request); !sent.ok()) return sent;
  absl::StatusOr<Fields> answer = ReceiveFields(fd_);
  if (!answer.ok()) return answer;
  if (answer->at(0) != "ok") return absl::InternalError(answer->at(0));
  answer->erase(answer->begin());
  return answer;
}

absl::StatusOr<RemoteRegion> IpcPeer::Take(const absl::StatusOr<Fields>& answer, size_t bytes) {
  if (!answer.ok()) return answer.status();
  keys_.push_back(answer->at(3));
  return RemoteRegion{.id = RegionId{static_cast<uint32_t>(Number(answer->at(0)))},
                      .rkey = static_cast<uint32_t>(Number(answer->at(1))),
                      .base = Number(answer->at(2)),
                      .bytes = bytes,
                      .kind = MemoryKind::kCuda,
                      .access = Access::kReadWrite};
}

absl::StatusOr<RemoteRegion> IpcPeer::Register(const std::string& memory, size_t bytes,
                                               uint64_t offset) {
  return Take(Call({"register", memory, std::to_string(bytes), std::to_string(offset)}), bytes);
}
absl::StatusOr<RemoteRegion> IpcPeer::RegisterPart(uint64_t offset, size_t bytes) {
  return Take(Call({"part", std::to_string(offset), std::to_string(bytes)}), bytes);
}
absl::Status IpcPeer::Deregister(const RemoteRegion& region) {
  return Call({"deregister", std::to_string(static_cast<uint32_t>(region.id))}).status();
}
absl::Status IpcPeer::Fill(uint64_t seed) { return Call({"fill", std::to_string(seed)}).status(); }
absl::StatusOr<bool> IpcPeer::Holds(uint64_t seed, size_t bytes) {
  const auto answer = Call({"holds", std::to_string(seed), std::to_string(bytes)});
  if (!answer.ok()) return answer.status();
  return answer->at(0) == "yes";
}
absl::Status IpcPeer::FailNext(const std::string& call, int error) {
  return Call({"fail", call, std::to_string(error)}).status();
}

}  // namespace kvxfer::testing
