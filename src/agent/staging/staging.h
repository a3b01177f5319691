// Staging: GPU memory goes over backends that cannot reach it through pinned host memory. This
// class has that memory, divided into buffers (a `buffer` is a buffer's index), and copies between
// buffers and regions. The first half of the buffers is lent to peers, which write into them or
// read from them; the other half is for this agent's own transfers. So neither use waits for the
// other.
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
#include "kvxfer/memory.h"
#include "src/cuda/copier.h"
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
  // Copies `pieces` into buffer `buffer`, one after the other from its start, or out of it.
  // OnMoved(key) follows. `user` may be destroyed earlier, after Forget.
  void Move(User* user, uint64_t key, uint32_t buffer, bool into_buffer, std::vector<Piece> pieces);
  // The copies of `user` go on and are not reported. Its own buffers in `own_buffers` are freed
  // when their copies are over.
  void Forget(User* user, const std::set<uint32_t>& own_buffers);

  // Begins copies that had to wait, and reports those that are over. True: there were any.
  bool Poll();
  // When to Poll next, although nothing else happens (Copier::NextPoll); Time::max(): no copy is
  // under way.
  Time NextPoll() const;

  // Waits for all copies without reporting them. No call may follow.
  void Close() { copiers_.clear(); }

  // A line for people on how bytes get into and out of the buffers; empty before Open.
  std::string Describe() const;

 private:
  struct Batch {
    int device = 0;
    uint64_t number = 0;
  };
  struct Job {
    User* user = nullptr;
    uint64_t key = 0;
    uint32_t buffer = 0;
    bool into_buffer = false;
    bool give_own = false;  // the user is gone: free the buffer here
    std::vector<Piece> pieces{};
    std::set<int> devices{};    // GPUs whose pieces have not begun
    std::vector<Batch> left{};  // begun and not over
    absl::Status status{};

    bool over() const { return devices.empty() && left.empty(); }
  };

  absl::Status MakeBuffers(const cuda::Driver& driver, int device);
  absl::Status MakeCopier(const cuda::Driver& driver, int device);
  void TakeMade();
  cuda::Copier* CopierOf(int device) const;
  absl::Status CheckAlive(const Job& job);
  void CopyHost(const Job& job) const;
  void Begin(Job& job);
  absl::Status BeginOn(Job& job, int device);
  void TakeEnds(int device, cuda::Copier& copier);

  const uint32_t buffers_;
  const uint32_t copy_sms_;
  std::mutex mu_;          // serialises Open
  std::set<int> devices_;  // GPUs that have a copier
  HostBuffer memory_;
  cuda::Pinned pinned_;
  std::atomic<std::byte*> data_{nullptr};  // of memory_, once it is pinned

  std::mutex made_mu_;  // guards made_, which Open fills and the driver empties
  std::map<int, std::unique_ptr<cuda::Copier>> made_;

  std::map<RegionId, cuda::WatchedSpan> regions_;
  std::vector<uint32_t> own_;
  std::map<int, std::unique_ptr<cuda::Copier>> copiers_;
  std::list<Job> jobs_;  // in the order of Move
  uint64_t checks_ = 0;
  std::vector<cuda::Piece> scratch_;  // the pieces for one GPU
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGING_H_
