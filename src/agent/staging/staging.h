// Staging: GPU memory goes over backends that cannot reach it through pinned host memory. This
// class has that memory, divided into buffers (a `buffer` is a buffer's index), and copies between
// buffers and regions. The first half of the buffers is lent to peers, which write into them or
// read from them; the other half is for this agent's own transfers. So neither use waits for the
// other.
//
// What a GPU copies is gathered in memory of that GPU, the *bounce*, and then moved down in one
// piece by a copy engine; and the reverse. A copy engine moves as much as PCIe does, occupies no
// multiprocessor, and waits for no other process's kernels.
//
// stager.h describes how a transfer uses buffers at the initiator, staging_target.h at the target;
// docs/architecture.md, "Staging", the whole path. Nothing is allocated before the first GPU memory
// is registered.
//
// Lifetime: outlives the registrations and the backends, which may still move bytes of the buffers.
// Thread-safety: Open, span and open from any thread; everything else by the driver only.

#ifndef KVXFER_AGENT_STAGING_STAGING_H_
#define KVXFER_AGENT_STAGING_STAGING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/memory.h"
#include "src/cuda/copier.h"
#include "src/cuda/device_memory.h"
#include "src/cuda/memory.h"
#include "src/cuda/pinned.h"
#include "src/cuda/watched_span.h"

namespace kvxfer {

class Staging {
 public:
  // The size of a buffer: large enough that its control messages cost little beside its bytes,
  // small enough that several buffers of one transfer are under way at once.
  static constexpr size_t kBufferBytes = 2 * 1024 * 1024;
  static constexpr uint64_t kMinBytes = 4 * kBufferBytes;

  // `bytes` is rounded down to whole buffers.
  // `copy_sms`: AgentOptions::copy_sms.
  explicit Staging(uint64_t bytes, uint32_t copy_sms = 0);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Allocates and pins the buffers near GPU `device`, and makes the copier between them and that
  // GPU, unless both exist already. Takes some 10 ms and may wait for work in the GPU's CUDA
  // streams. Those may wait for transfers, so the driver must never call this. After an error it
  // may be called again.
  absl::Status Open(int device);
  // The memory to register with the backends; null before Open.
  MemorySpan span() const;
  bool open() const { return data_.load() != nullptr; }
  uint32_t lent_buffers() const { return buffers_ / 2; }
  std::byte* At(uint32_t buffer) const { return data_.load() + size_t{buffer} * kBufferBytes; }

  // A region of GPU memory was registered, after Open of its device; or it was deregistered.
  void AddRegion(RegionId id, cuda::DeviceSpan span);
  void RemoveRegion(RegionId id) { regions_.erase(id); }
  // True: a copy from or to the region is under way.
  bool InUse(RegionId id) const;

  // One of this agent's own buffers; nothing: all are in use.
  std::optional<uint32_t> TakeOwn();
  void GiveOwn(uint32_t buffer) { own_.push_back(buffer); }

  // A contiguous part of a region.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
    RegionId region = RegionId::kNone;
    int device = -1;  // -1: host memory
  };
  class User {
   public:
    virtual ~User() = default;
    // The copy `key` is over. Called from Poll.
    virtual void OnMoved(uint64_t key, const absl::Status& status) = 0;
  };
  // Pinned host memory that holds a buffer's bytes.
  struct Place {
    std::byte* at = nullptr;
    // Destroyed when the copy is over. Its `doubt` is set if that is not certain.
    std::shared_ptr<CopyHold> hold{};
  };
  Place PlaceOf(uint32_t buffer) const { return {.at = At(buffer)}; }
  // Copies `pieces` to `place`, one after the other from its start, or out of it. OnMoved(key)
  // follows. `user` may be destroyed earlier, after Forget.
  void Move(User* user, uint64_t key, Place place, bool into_place, std::vector<Piece> pieces);
  // The copies of `user` go on and are not reported. Its own buffers in `own_buffers` are freed
  // when their copies are over.
  void Forget(User* user, const std::set<uint32_t>& own_buffers);

  // Begins copies that had to wait, and reports those that are over. True: there were any.
  bool Poll();
  // When to Poll next, although nothing else happens (Copier::NextPoll); Time::max(): no copy is
  // under way.
  Time NextPoll() const;

  // Waits for all copies without reporting them. No call may follow.
  void Close();

  // A line for people on how bytes get into and out of the buffers; empty before Open.
  std::string Describe() const;

 private:
  // The bounce of each GPU, in parts of a buffer's size: enough that a copy up and one down are
  // under way beside what gathers and scatters.
  static constexpr size_t kBounces = 8;
  // Fewer bytes are copied by kernels between the regions and the host: one step instead of two.
  static constexpr uint64_t kLeastBounced = 128 * 1024;

  // What copies on one GPU.
  struct Gpu {
    cuda::DeviceMemory bounce{};             // empty: the GPU had no memory left
    std::vector<uint64_t> parts{};           // of it, which nothing uses: their addresses
    std::unique_ptr<cuda::Copier> copier{};  // its destructor waits for what uses the bounce
  };
  struct Batch {
    int device = 0;
    uint64_t number = 0;
    uint64_t bounce = 0;  // the part that it uses; 0: none
  };
  struct Job {
    User* user = nullptr;
    uint64_t key = 0;
    Place place{};
    bool into_place = false;
    std::optional<uint32_t> own{};  // the user is gone: free this buffer here
    bool bounces = false;
    uint64_t bytes = 0;
    std::vector<Piece> pieces{};
    std::set<int> devices{};    // GPUs whose pieces have not begun
    std::vector<Batch> left{};  // begun and not over
    absl::Status status{};

    bool over() const { return devices.empty() && left.empty(); }
  };

  absl::Status MakeBuffers(const cuda::Driver& driver, int device);
  absl::Status MakeGpu(const cuda::Driver& driver, int device);
  void TakeMade();
  absl::Status CheckAlive(const Job& job);
  static void CopyHost(const Job& job);
  void Begin(Job& job);
  bool WaitsForBounce(const Job& job) const;
  absl::Status BeginOn(Job& job, int device);
  cuda::CopyBatch BatchOf(const Job& job, int device, uint64_t bounce);
  void TakeEnds(int device, Gpu& gpu);

  const uint32_t buffers_;
  const uint32_t copy_sms_;
  std::mutex mu_;          // serialises Open
  std::set<int> devices_;  // GPUs that were made ready
  HostBuffer memory_;
  cuda::Pinned pinned_;
  std::atomic<std::byte*> data_{nullptr};  // of memory_, once it is pinned

  std::mutex made_mu_;  // guards made_, which Open fills and the driver empties
  std::map<int, Gpu> made_;

  std::map<RegionId, cuda::WatchedSpan> regions_;
  std::vector<uint32_t> own_;
  std::map<int, Gpu> gpus_;
  std::list<Job> jobs_;  // in the order of Move
  uint64_t checks_ = 0;
  std::vector<cuda::Piece> scratch_;  // the pieces for one GPU
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGING_H_
