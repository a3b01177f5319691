// Two processes on GPU 0: an agent here and one in a child of this program, each with registered
// GPU memory, which nothing but kernels and kvxfer touch.
#ifndef KVXFER_TESTS_GPU_PEER_H_
#define KVXFER_TESTS_GPU_PEER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"
#include "tests/gpu/check.h"

namespace kvxfer::testing {

// How the two reach each other, and what memory they have.
struct Way {
  char name[24] = {};
  char backend[16] = {};
  char path[24] = {};   // as TransferStats::path has it
  bool pieces = false;  // of cuMemCreate, side by side, as PyTorch's expandable segments
};
inline std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
inline std::string WayName(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

inline constexpr Way kCudaIpc{.name = "CudaIpc", .backend = "cuda_ipc", .path = "cuda_ipc"};
inline constexpr Way kCudaIpcPieces{
    .name = "CudaIpcPieces", .backend = "cuda_ipc", .path = "cuda_ipc", .pieces = true};
inline constexpr Way kTcpStaged{.name = "TcpStaged", .backend = "tcp", .path = "tcp staged"};
inline constexpr Way kShmStaged{.name = "ShmStaged", .backend = "shm", .path = "shm staged"};

// Empty, or why this GPU has not what `way` needs.
std::string WhyNot(const Way& way);

// An agent with one region of GPU memory, of zeros. The context of GPU 0 is current in the thread
// that makes and destroys it.
class GpuSide {
 public:
  static absl::StatusOr<std::unique_ptr<GpuSide>> Create(const Way& way, const std::string& name,
                                                         uint64_t bytes);
  Agent& agent() { return *agent_; }
  RegionId region() const { return region_; }
  CUdeviceptr at() const { return pieces_ ? pieces_->at() : plain_->at(); }
  uint64_t bytes() const { return bytes_; }
  // Of no use any more; the agent stays. The region is not registered.
  void FreeMemory();

 private:
  explicit GpuSide(uint64_t bytes) : bytes_(bytes) {}

  const uint64_t bytes_;
  std::optional<Memory> plain_{};
  std::optional<Virtual> pieces_{};
  RegionId region_ = RegionId::kNone;
  std::unique_ptr<Agent> agent_{};
};

// Blocks of `layout` between memory at `here` and at `there`, posted by the agent.
absl::StatusOr<Transfer> PostWrite(Agent& agent, const std::string& peer, const Layout& layout,
                                   CUdeviceptr here, CUdeviceptr there,
                                   const TransferOptions& options);
absl::StatusOr<Transfer> PostRead(Agent& agent, const std::string& peer, const Layout& layout,
                                  CUdeviceptr here, CUdeviceptr there,
                                  const TransferOptions& options);
// With time enough.
TransferOptions Patient();

// The other one, "peer", whose process obeys this one. Each call returns when it has been done.
class GpuPeer {
 public:
  GpuPeer(const Way& way, uint64_t bytes);

  // `side` knows it from now on.
  absl::Status MeetBy(GpuSide& side);
  CUdeviceptr at() const { return at_; }
  void Fill(uint64_t seed);  // 0: zeros
  // What a kernel of that process finds of blocks that were written there.
  gpu::CheckResult Look(const Layout& layout, uint64_t seed);
  // It writes into `side` from now on, without end.
  void BeginWriting(GpuSide& side, const Layout& layout);
  void Kill() { child_.Kill(); }

 private:
  Child child_;
  std::string metadata_;
  CUdeviceptr at_ = 0;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_GPU_PEER_H_
