#include "src/backends/cuda_ipc/copy_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "src/backends/cuda_ipc/regions.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

const CudaIpcRegistration& LocalOf(const Run& run) {
  return static_cast<const CudaIpcRegistration&>(*run.registration);
}
const std::shared_ptr<PeerRegion>& RegionOf(const Run& run) {
  return static_cast<const CudaIpcRemoteKey&>(*run.key).region();
}

}  // namespace

CopyQueue::~CopyQueue() { Wait(nullptr); }

CopyQueue::Lane* CopyQueue::Find(int device) const {
  const std::lock_guard lock(mu_);
  const auto it = lanes_.find(device);
  return it == lanes_.end() ? nullptr : it->second.get();
}

const std::vector<std::pair<int, CopyQueue::Lane*>>& CopyQueue::Lanes() {
  const std::lock_guard lock(mu_);
  if (known_.size() != lanes_.size()) {
    known_.clear();
    for (const auto& [device, lane] : lanes_) known_.emplace_back(device, lane.get());
  }
  return known_;
}

absl::Status CopyQueue::MakeReady(const cuda::Driver* driver, int device) {
  if (Find(device) != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<cuda::Copier>> copier = cuda::Copier::Create(driver, device);
  if (!copier.ok()) return copier.status();
  auto lane = std::make_unique<Lane>();
  lane->driver = driver;
  lane->copier = *std::move(copier);
  const std::lock_guard lock(mu_);
  // If two threads made one at the same time, the first stays.
  lanes_.emplace(device, std::move(lane));
  return absl::OkStatus();
}

void CopyQueue::Add(CopyUser* user, const Op& op, std::span<const int> devices) {
  const auto posted = ops_.insert(
      ops_.end(), {.op = op, .user = user, .waiting = static_cast<uint32_t>(devices.size())});
  for (const int device : devices) Find(device)->waiting.push_back(posted);
}

void CopyQueue::Start() {
  if (ops_.empty()) return;
  for (const auto& [device, lane] : Lanes()) {
    while (!lane->waiting.empty() && lane->running.size() < kMaxRunning) {
      if (!StartBatch(device, *lane)) break;
    }
  }
}

// Begins one batch from the ops that wait. False: nothing can begin now.
bool CopyQueue::StartBatch(int device, Lane& lane) {
  ++batches_;
  pieces_.clear();
  Batch batch;
  uint64_t bytes = 0;
  while (!lane.waiting.empty()) {
    const Ops::iterator posted = lane.waiting.front();
    const BlockRange& blocks = posted->op.blocks;
    const bool fits =
        pieces_.size() + blocks.pieces <= kBatchPieces && bytes + blocks.bytes <= kBatchBytes;
    if (!batch.ops.empty() && !fits) break;
    lane.waiting.pop_front();
    --posted->waiting;
    const size_t before = pieces_.size();
    absl::Status added = AddPieces(device, lane, *posted, batch);
    if (added.ok() && pieces_.size() > cuda::Copier::kMaxPieces) {
      if (!batch.ops.empty()) {
        // An op may have more pieces than runs, if a run crosses allocations: it gets a batch of
        // its own.
        pieces_.resize(before);
        lane.waiting.push_front(posted);
        ++posted->waiting;
        break;
      }
      added = absl::InvalidArgumentError("cuda_ipc: an op falls into too many pieces");
    }
    if (!added.ok()) {
      pieces_.resize(before);
      posted->status.Update(added);
      Left(posted);
      continue;
    }
    bytes += blocks.bytes;
    ++posted->running;
    batch.ops.push_back(posted);
  }
  if (batch.ops.empty()) return !lane.waiting.empty();
  return Launch(device, lane, std::move(batch));
}

absl::Status CopyQueue::AddPieces(int device, const Lane& lane, const Posted& posted,
                                  Batch& batch) {
  touched_.clear();
  const auto touch = [this](cuda::WatchedSpan* span) {
    if (span != nullptr && span->FirstTouched()) touched_.push_back(span);
  };
  absl::Status status;
  for (RunWalk walk(posted.op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    const CudaIpcRegistration& local = LocalOf(run);
    if (local.device() != device) continue;
    const std::shared_ptr<PeerRegion>& region = RegionOf(run);
    if (region->FirstIn(batches_)) batch.regions.push_back(region);
    local.watched().Touch(run.local, run.bytes, batches_);
    touch(&local.watched());
    status = region->AddPieces(device, posted.op.kind, run.local, run.remote, run.bytes, batches_,
                               pieces_);
    touch(region->watched());
    if (!status.ok()) break;
  }
  // All of them, even after an error: a span that was touched and not checked would count as alive.
  for (cuda::WatchedSpan* const span : touched_) {
    const absl::Status alive = span->Check(*lane.driver);
    status.Update(Annotate(alive, "cuda_ipc"));
  }
  return status;
}

// False: the copier has no space for it.
bool CopyQueue::Launch(int device, Lane& lane, Batch batch) {
  absl::StatusOr<uint64_t> number = lane.copier->Start(pieces_);
  if (number.ok()) {
    batch.number = *number;
    lane.running.push_back(std::move(batch));
    return true;
  }
  if (absl::IsResourceExhausted(number.status()) && !lane.running.empty()) {
    // Tried again when a batch has ended.
    for (const Ops::iterator posted : batch.ops) {
      --posted->running;
      ++posted->waiting;
    }
    lane.waiting.insert(lane.waiting.begin(), batch.ops.begin(), batch.ops.end());
    return false;
  }
  // One op may be the cause of an error that all of them would end with: start each alone.
  if (batch.ops.size() > 1) return StartEach(device, lane, batch);
  for (const Ops::iterator posted : batch.ops) {
    posted->status.Update(Annotate(number.status(), "cuda_ipc"));
    --posted->running;
    Left(posted);
  }
  return true;
}

bool CopyQueue::StartEach(int device, Lane& lane, const Batch& batch) {
  bool space = true;
  for (const Ops::iterator posted : batch.ops) {
    ++batches_;
    pieces_.clear();
    Batch alone;
    absl::Status status = AddPieces(device, lane, *posted, alone);
    if (status.ok()) {
      alone.ops.push_back(posted);
      space &= Launch(device, lane, std::move(alone));
      continue;
    }
    posted->status.Update(status);
    --posted->running;
    Left(posted);
  }
  return space;
}

void CopyQueue::Left(Ops::iterator posted) {
  // Removed before it is reported: OnCopied may post again.
  if (posted->waiting > 0 || posted->running > 0) return;
  const Posted ended = std::move(*posted);
  ops_.erase(posted);
  ended.user->OnCopied(ended.op, ended.status);
}

void CopyQueue::Drop(CopyUser* user, uint64_t transfer, const absl::Status& why) {
  std::vector<Ops::iterator> dropped;
  for (const auto& [device, lane] : Lanes()) {
    std::erase_if(lane->waiting, [&](const Ops::iterator& posted) {
      if (posted->user != user || (transfer != 0 && posted->op.transfer != transfer)) return false;
      dropped.push_back(posted);
      return true;
    });
  }
  for (const Ops::iterator& posted : dropped) {
    --posted->waiting;
    posted->status.Update(why);
    Left(posted);
  }
}

size_t CopyQueue::Running(const CopyUser* user, uint64_t transfer) const {
  return static_cast<size_t>(std::ranges::count_if(ops_, [&](const Posted& posted) {
    return posted.running > 0 && posted.user == user &&
           (transfer == 0 || posted.op.transfer == transfer);
  }));
}

bool CopyQueue::TakeEnds(Lane& lane) {
  bool any = false;
  while (!lane.running.empty()) {
    const std::optional<cuda::Copier::End> end = lane.copier->Poll();
    if (!end) break;
    any = true;
    // Batches are in the order of their start. A number that is not at the front has no ops left.
    if (lane.running.front().number != end->batch) continue;
    const Batch batch = std::move(lane.running.front());
    lane.running.pop_front();
    for (const Ops::iterator posted : batch.ops) {
      posted->status.Update(Annotate(end->status, "cuda_ipc"));
      --posted->running;
      Left(posted);
    }
  }
  return any;
}

bool CopyQueue::Poll() {
  if (ops_.empty()) return false;
  bool any = false;
  for (const auto& [device, lane] : Lanes()) any |= TakeEnds(*lane);
  Start();
  return any;
}

bool CopyQueue::broken() {
  return std::ranges::any_of(Lanes(),
                             [](const auto& entry) { return entry.second->copier->broken(); });
}

void CopyQueue::Wait(const CopyUser* user) {
  const auto runs = [&](const Posted& posted) {
    return posted.running > 0 && (user == nullptr || posted.user == user);
  };
  // Busy-waits with yield: this happens only when an endpoint or the backend ends.
  while (std::ranges::any_of(ops_, runs)) {
    bool any = false;
    for (const auto& [device, lane] : Lanes()) any |= TakeEnds(*lane);
    if (!any) std::this_thread::yield();
  }
}

std::string CopyQueue::Describe(int device) const {
  const Lane* const lane = Find(device);
  return lane == nullptr ? std::string() : lane->copier->Describe();
}

}  // namespace kvxfer::cuda_ipc
