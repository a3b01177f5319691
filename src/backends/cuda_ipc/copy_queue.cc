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

// The largest id of a region that has blocks. An id has 32 bits.
uint32_t LastOf(const PagedRegion& region) {
  return static_cast<uint32_t>(std::min<uint64_t>(region.count - 1, UINT32_MAX));
}

}  // namespace

CopyQueue::~CopyQueue() { Wait(nullptr); }

CopyQueue::Lane* CopyQueue::Find(int device) const {
  const std::lock_guard lock(mu_);
  const auto it = lanes_.find(device);
  return it == lanes_.end() ? nullptr : it->second.get();
}

const std::vector<std::pair<int, CopyQueue::Lane*>>& CopyQueue::Lanes() const {
  const std::lock_guard lock(mu_);
  if (known_.size() != lanes_.size()) {
    known_.clear();
    for (const auto& [device, lane] : lanes_) known_.emplace_back(device, lane.get());
  }
  return known_;
}

absl::Status CopyQueue::MakeReady(const cuda::Driver* driver, int device) {
  if (Find(device) != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<cuda::Copier>> copier =
      cuda::Copier::Create(driver, device, copy_sms_);
  if (!copier.ok()) return copier.status();
  auto lane = std::make_unique<Lane>();
  lane->driver = driver;
  lane->copier = *std::move(copier);
  const std::lock_guard lock(mu_);
  // If two threads made one at the same time, the first stays.
  lanes_.emplace(device, std::move(lane));
  return absl::OkStatus();
}

void CopyQueue::Add(CopyUser* user, const Op& op, std::span<const int> devices, bool by_ids) {
  if (std::exchange(last_transfer_, op.transfer) != op.transfer) ++rounds_;
  const auto posted = ops_.insert(
      ops_.end(),
      {.op = op, .user = user, .by_ids = by_ids, .waiting = static_cast<uint32_t>(devices.size())});
  for (const int device : devices) Find(device)->waiting.push_back(posted);
}

void CopyQueue::Start() {
  if (ops_.empty()) return;
  for (const auto& [device, lane] : Lanes()) StartOn(device, *lane);
}

void CopyQueue::StartOn(int device, Lane& lane) {
  const auto can = [&] { return !lane.waiting.empty() && lane.running.size() < kMaxRunning; };
  if (!can()) return;
  // For all batches. If it fails, the copier says so of each.
  const cuda::ContextScope scope(*lane.driver, device, cuda::ContextScope::For::kQueueing);
  while (can() && StartBatch(device, lane)) {
  }
}

// Begins one batch from the ops that wait. False: nothing can begin now.
bool CopyQueue::StartBatch(int device, Lane& lane) {
  BeginBatch();
  Batch batch;
  uint64_t bytes = 0;
  size_t blocks = 0;
  bool alone = false;
  while (!lane.waiting.empty() && !(alone && !batch.ops.empty())) {
    const Ops::iterator posted = lane.waiting.front();
    const BlockRange& range = posted->op.blocks;
    // What the GPU finds wrong with ids is the end of the batch, so their op has one for itself.
    alone = range.view->ids_on_gpu();
    const bool fits = !alone && blocks + range.pieces <= kBatchBlocks &&
                      bytes + range.bytes <= lane.copier->BatchBytes(reach_);
    if (!batch.ops.empty() && !fits) break;
    lane.waiting.pop_front();
    --posted->waiting;
    const size_t pieces = pieces_.size();
    const size_t paged = paged_.size();
    absl::Status added = AddOp(device, lane, *posted, batch);
    if (added.ok() && pieces_.size() > cuda::Copier::kMaxPieces) {
      if (!batch.ops.empty()) {
        // An op may have more pieces than runs, if a run crosses allocations: it gets a batch of
        // its own.
        pieces_.resize(pieces);
        paged_.resize(paged);
        lane.waiting.push_front(posted);
        ++posted->waiting;
        break;
      }
      added = absl::InvalidArgumentError("cuda_ipc: an op falls into too many pieces");
    }
    if (!added.ok()) {
      pieces_.resize(pieces);
      paged_.resize(paged);
      posted->status.Update(added);
      Left(posted);
      continue;
    }
    bytes += range.bytes;
    blocks += range.pieces;
    ++posted->running;
    batch.ops.push_back(posted);
  }
  if (batch.ops.empty()) return !lane.waiting.empty();
  return Launch(device, lane, std::move(batch));
}

void CopyQueue::BeginBatch() {
  ++batches_;
  pieces_.clear();
  paged_.clear();
  reach_ = cuda::Reach::kOwn;
}

absl::Status CopyQueue::AddOp(int device, const Lane& lane, const Posted& posted, Batch& batch) {
  touched_.clear();
  sides_ = {};
  absl::Status status;
  UseIds(*posted.op.blocks.view);
  for (PairWalk walk(posted.op.blocks); status.ok() && !walk.done(); walk.Next()) {
    status = walk.pair() != nullptr && posted.by_ids
                 ? AddBlocks(device, posted.op, walk, batch)
                 : AddRuns(device, posted.op, walk.range(), batch);
  }
  // All of them, even after an error: a span that was touched and not checked would count as alive.
  for (cuda::WatchedSpan* const span : touched_) {
    const absl::Status alive = span->Check(*lane.driver);
    status.Update(Annotate(alive, "cuda_ipc"));
  }
  return status;
}

void CopyQueue::Touch(cuda::WatchedSpan* span) {
  if (span != nullptr && span->FirstTouched()) touched_.push_back(span);
}

void CopyQueue::AddRegion(int device, const std::shared_ptr<PeerRegion>& region, Batch& batch) {
  if (!region->FirstIn(batches_)) return;
  batch.regions.push_back(region);
  reach_ = std::max(reach_, region->ReachFrom(device));
}

// Ids below the counts of a pair's regions cannot leave what lies within the registered ones.
bool CopyQueue::Holds(const BlockView& view, const BlockPair& pair,
                      const CudaIpcRegistration& local, const PeerRegion& remote) {
  const PairExtent extent = ExtentOf(view, pair);
  return local.Contains(pair.local.base, extent.local) &&
         cuda_ipc::Holds(remote.base(), remote.bytes(), pair.remote.base, extent.remote);
}

// Whole blocks of one pair of regions.
absl::Status CopyQueue::AddBlocks(int device, const Op& op, const PairWalk& blocks, Batch& batch) {
  const BlockView& view = *op.blocks.view;
  const BlockPair& pair = *blocks.pair();
  const auto& local =
      static_cast<const CudaIpcRegistration&>(*view.registrations[pair.local_region]);
  if (local.device() != device) return absl::OkStatus();
  const std::shared_ptr<PeerRegion>& region =
      static_cast<const CudaIpcRemoteKey&>(*view.keys[pair.remote_region]).region();
  if (sides_.local != &local || sides_.region != region.get()) {
    absl::Status usable = UseSides(device, local, region, batch);
    if (!usable.ok()) return usable;
  }
  if (!sides_.at) return AddRuns(device, op, blocks.range(), batch);  // ids are on the host
  const bool one_piece = pair.pieces == BlockPair::kOnePiece;
  const uint32_t first = pair.first_id + blocks.first_id();
  const cuda::PagedCopy::Side here{.base = pair.local.base,
                                   .stride = pair.local.stride,
                                   .ids = ids_.local + first,
                                   .last = LastOf(pair.local),
                                   .on_device = view.local_device_ids.at != 0};
  const cuda::PagedCopy::Side there{.base = *sides_.at + (pair.remote.base - region->base()),
                                    .stride = pair.remote.stride,
                                    .ids = ids_.remote + first,
                                    .last = LastOf(pair.remote),
                                    .on_device = view.remote_device_ids.at != 0};
  const bool writes = op.kind == OpKind::kWrite;
  const BlockPieces* const pieces = one_piece ? nullptr : &view.block_pieces[pair.pieces];
  paged_.push_back({.to = writes ? there : here,
                    .from = writes ? here : there,
                    .count = blocks.blocks(),
                    .bytes = one_piece ? pair.local.block_bytes : pieces->bytes,
                    .pieces = pieces,
                    .to_local = !writes});
  return absl::OkStatus();
}

// Ids in GPU memory are read there, as blocks are.
void CopyQueue::UseIds(const BlockView& view) {
  ids_ = {.local = view.local_ids, .remote = view.remote_ids};
  for (const auto& [ids, used] :
       {std::pair(&view.local_device_ids, &ids_.local), {&view.remote_device_ids, &ids_.remote}}) {
    if (ids->at == 0) continue;
    *used = reinterpret_cast<const uint32_t*>(ids->at);
    const auto& at = static_cast<const CudaIpcRegistration&>(*view.registrations[ids->region]);
    at.watched().Touch(at.watched().span().base, at.watched().span().bytes, rounds_);
    Touch(&at.watched());
  }
}

// Once for a pair of regions, as long as they do not alternate: whether the memory is there.
absl::Status CopyQueue::UseSides(int device, const CudaIpcRegistration& local,
                                 const std::shared_ptr<PeerRegion>& region, Batch& batch) {
  AddRegion(device, region, batch);
  absl::StatusOr<std::optional<uint64_t>> at = region->AddressFor(device, rounds_);
  if (!at.ok()) return at.status();
  if (local.parts() != 1) at->reset();
  sides_ = {.local = &local, .region = region.get(), .at = *at};
  if (!sides_.at) return absl::OkStatus();
  local.watched().Touch(local.watched().span().base, 1, rounds_);
  Touch(&local.watched());
  Touch(region->watched());
  return absl::OkStatus();
}

absl::Status CopyQueue::AddRuns(int device, const Op& op, const BlockRange& range, Batch& batch) {
  for (RunWalk walk(range); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    const CudaIpcRegistration& local = LocalOf(run);
    if (local.device() != device) continue;
    const std::shared_ptr<PeerRegion>& region = RegionOf(run);
    AddRegion(device, region, batch);
    local.watched().Touch(run.local, run.bytes, rounds_);
    Touch(&local.watched());
    absl::Status added =
        region->AddPieces(device, op.kind, run.local, run.remote, run.bytes, rounds_, pieces_);
    Touch(region->watched());
    if (!added.ok()) return added;
  }
  return absl::OkStatus();
}

// False: the copier has no space for it.
bool CopyQueue::Launch(int device, Lane& lane, Batch batch) {
  absl::StatusOr<uint64_t> number =
      lane.copier->Start({.pieces = pieces_, .paged = paged_, .reach = reach_});
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
    BeginBatch();
    Batch alone;
    absl::Status status = AddOp(device, lane, *posted, alone);
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
  ++rounds_;
  Start();
  return any;
}

std::optional<Time> CopyQueue::NextPoll() const {
  std::optional<Time> next;
  for (const auto& [device, lane] : Lanes()) {
    // Ops that wait begin with the end of others; if none runs, at once.
    const bool now = lane->running.empty() && !lane->waiting.empty();
    const std::optional<Time> at = now ? Time{} : lane->copier->NextPoll();
    next = Earlier(next, at);
  }
  return next;
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
