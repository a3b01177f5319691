// GPU memory over backends that cannot reach it, by way of pinned host memory: the memory, in
// slots, and what copies between slots and regions. Of the slots the first half are lent to peers
// (who write into them, or read), the others are this agent's own, so that neither waits for the
// other.
//
// How a transfer goes over slots is in stager.h (this agent is the initiator) and stage_desk.h (it
// is the target); docs/architecture.md, "Staging", has the whole way.
//
// Nothing of it exists before the first GPU memory is registered.
//
// Lifetime: outlives the registrations and the backends, which may still move bytes of the slots.
// Thread-safety: Open, span and open from any thread; everything else by the owner of the engine.

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
  // Large enough that its control messages cost little beside its bytes, small enough that some of
  // one transfer are on their way at once.
  static constexpr size_t kSlotBytes = 2 * 1024 * 1024;
  static constexpr uint64_t kMinBytes = 4 * kSlotBytes;

  // `bytes` of slots, in whole ones.
  explicit Staging(uint64_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Makes the slots, near `device`, and what copies between them and that device, where that was
  // not done. Takes some 10 ms, and may wait for what is in the streams of the device: they may
  // wait for transfers, so never on the thread that drives those. An error says why it cannot be
  // had; it is tried again.
  absl::Status Open(int device);
  // What to register with the backends; null before Open.
  MemorySpan span() const;
  bool open() const { return data_.load() != nullptr; }
  uint32_t lent_slots() const { return slots_ / 2; }
  std::byte* At(uint32_t slot) const { return data_.load() + size_t{slot} * kSlotBytes; }

  // A region of GPU memory is registered, behind Open of its device, or not any more.
  void AddRegion(RegionId id, cuda::DeviceSpan span);
  void RemoveRegion(RegionId id) { regions_.erase(id); }
  // A copy out of it or into it is under way.
  bool InUse(RegionId id) const;

  // One of the agent's own slots; none: all are in use.
  std::optional<uint32_t> TakeOwn();
  void GiveOwn(uint32_t slot) { own_.push_back(slot); }

  // A contiguous piece of a region.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
    RegionId region = RegionId::kNone;
    int device = -1;  // -1: host memory
  };
  class User {
   public:
    virtual ~User() = default;
    // The copy is over; within Poll.
    virtual void OnMoved(uint64_t key, const absl::Status& status) = 0;
  };
  // Copies pieces into `slot`, one behind the other from its beginning, or out of it; OnMoved(key)
  // follows. `user` may be destroyed before, after Forget.
  void Move(User* user, uint64_t key, uint32_t slot, bool into_slot, std::vector<Piece> pieces);
  // Those of `user` go on, and nobody is told. Slots of its own that they use are given back then.
  void Forget(User* user, const std::set<uint32_t>& own_slots);

  // Begins copies that waited, and tells of those that are over; true: there were some.
  bool Poll();
  // Copies are under way: Poll soon, nothing else tells of their end.
  bool busy() const { return !jobs_.empty(); }

  // Waits for all copies; nobody is told of them. Nothing may follow.
  void Close() { copiers_.clear(); }

  // A line for a person on how bytes get in and out of the slots; empty: there are none.
  std::string Describe() const;

 private:
  struct Batch {
    int device = 0;
    uint64_t number = 0;
  };
  struct Job {
    User* user = nullptr;
    uint64_t key = 0;
    uint32_t slot = 0;
    bool into_slot = false;
    bool give_own = false;  // nobody else will
    std::vector<Piece> pieces{};
    std::set<int> devices{};    // whose pieces have not begun
    std::vector<Batch> left{};  // begun, not over
    absl::Status status{};

    bool over() const { return devices.empty() && left.empty(); }
  };

  absl::Status MakeSlots(const cuda::Driver& driver, int device);
  absl::Status MakeCopier(const cuda::Driver& driver, int device);
  void TakeMade();
  cuda::Copier* CopierOf(int device) const;
  absl::Status CheckAlive(const Job& job);
  void CopyHost(const Job& job) const;
  void Begin(Job& job);
  absl::Status BeginOn(Job& job, int device);
  void TakeEnds(int device, cuda::Copier& copier);

  const uint32_t slots_;
  std::mutex mu_;          // of Open
  std::set<int> devices_;  // with a copier
  HostBuffer memory_;
  cuda::Pinned pinned_;
  std::atomic<std::byte*> data_{nullptr};  // of memory_, once it is pinned

  std::mutex made_mu_;  // of made_, which the owner takes over
  std::map<int, std::unique_ptr<cuda::Copier>> made_;

  std::map<RegionId, cuda::WatchedSpan> regions_;
  std::vector<uint32_t> own_;
  std::map<int, std::unique_ptr<cuda::Copier>> copiers_;
  std::list<Job> jobs_;  // in the order of Move
  uint64_t checks_ = 0;
  std::vector<cuda::Piece> scratch_;  // of one device
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGING_H_
