// CudaIpcDialledEndpoint: how it comes up, posts, stops and ends.

#include "src/backends/cuda_ipc/dialled.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "src/backends/cuda_ipc/backend.h"
#include "src/backends/cuda_ipc/regions.h"
#include "src/core/base/strings.h"
#include "src/transport/check_op.h"

namespace kvxfer::cuda_ipc {

CudaIpcDialledEndpoint::CudaIpcDialledEndpoint(CudaIpcBackend* backend, net::PeerAddress control,
                                               MetadataAddress peer, const HostIdentity& host)
    : CudaIpcEndpoint(backend, std::move(control)), peer_(std::move(peer)), host_(host) {}

// The agent destroys endpoints only after kDown. If ops are left all the same, they are ended, and
// running copies are awaited.
CudaIpcDialledEndpoint::~CudaIpcDialledEndpoint() {
  if (backend_ == nullptr) return;
  StopData();
  backend_->copies().Wait(this);
  if (lifeline_ != nullptr) BeQuiet();
}

void CudaIpcDialledEndpoint::StopData() {
  ended_ = true;
  backend_->copies().Drop(this, 0, absl::UnavailableError("the cuda_ipc endpoint is gone"));
}

absl::Status CudaIpcDialledEndpoint::OnFrame(std::span<const std::byte> frame) {
  const absl::StatusOr<Frame> decoded = Decode(frame);
  if (!decoded.ok()) return decoded.status();
  const Hello* hello = std::get_if<Hello>(&*decoded);
  if (greeting() && hello != nullptr && !dialled_) return MakeLifeline(*hello);
  if (greeting() && dialled_ && std::holds_alternative<Joined>(*decoded)) {
    GoUp();
    return absl::OkStatus();
  }
  if (up()) return OnRingsFrame(*decoded);
  return absl::InvalidArgumentError("the peer sent a cuda_ipc frame that has no place here");
}

absl::Status CudaIpcDialledEndpoint::MakeLifeline(const Hello& hello) {
  dialled_ = true;
  auto lifeline = Lifeline::Connect(&reactor(), peer_.listener);
  if (!lifeline.ok()) return lifeline.status();
  const net::Credentials& them = (*lifeline)->peer();
  if (absl::Status good = net::CheckCredentials(them, host_.pid, "cuda_ipc"); !good.ok()) {
    return good;
  }
  owner_ = {.pid = them.pid,
            .start_time = host_.start_time,
            .same_process = them.pid == static_cast<uint32_t>(::getpid()),
            .same_ipc_namespace = peer_.ipc_namespace == backend_->ipc_namespace()};
  lifeline_ = *std::move(lifeline);
  lifeline_->Send(
      PacketType::kDial,
      wire::Encode(DialPacket{.start_time = backend_->host().start_time, .word = hello.word}));
  return OfferRings();
}

EndpointInfo CudaIpcDialledEndpoint::Describe() const {
  return OneRail(absl::StrCat(Path(), ControlPath()));
}

std::string CudaIpcDialledEndpoint::Path() const {
  std::string out = absl::StrCat("process ", host_.pid);
  if (backend_ == nullptr) return out;
  std::set<std::string> paths;
  for (const auto& [number, wanted] : wanted_) {
    const std::shared_ptr<PeerRegion> region = wanted.known.lock();
    if (region == nullptr) continue;
    for (const int device : region->devices()) paths.insert(backend_->PathOf(*region, device));
  }
  if (paths.empty()) return absl::StrCat(out, ", no GPU memory of it is open yet");
  for (const std::string& path : paths) absl::StrAppend(&out, ", ", path);
  return out;
}

// Checks all runs before any byte moves, so an op that breaks the rules has no partial effect.
// Bounds and rights are enforced on this side, because a GPU reaches all of an allocation that was
// opened. Collects the devices of the op's local memory on the way.
absl::Status CudaIpcDialledEndpoint::CheckOp(const Op& op) {
  op_devices_.clear();
  constexpr OpLimits kLimits{.bytes = kMaxOpBytes, .pieces = kMaxOpPieces};
  if (absl::Status good = kvxfer::CheckOp(op, kLimits, "cuda_ipc"); !good.ok()) return good;
  last_local_ = nullptr;
  last_key_ = nullptr;
  by_ids_ = true;
  if (op.blocks.view != nullptr && op.blocks.view->ids_on_gpu()) return CheckUnread(op);
  for (PairWalk walk(op.blocks); !walk.done(); walk.Next()) {
    absl::Status good =
        walk.pair() != nullptr ? CheckBlocks(op, walk) : CheckRuns(op, walk.range());
    if (!good.ok()) return good;
  }
  return absl::OkStatus();
}

absl::Status CudaIpcDialledEndpoint::NotOfThis() {
  return absl::InvalidArgumentError(
      "cuda_ipc: blocks without a registration, or with a key of another connection");
}

// Ids in GPU memory cannot be read here. So the op must consist of whole blocks that a GPU can
// address, whatever the ids are; and that GPU must have the ids.
absl::Status CudaIpcDialledEndpoint::CheckUnread(const Op& op) {
  const BlockView& view = *op.blocks.view;
  const auto bad = [](std::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda_ipc: ids in GPU memory: ", ToAbsl(why), "; bring the ids to the host"));
  };
  for (PairWalk walk(op.blocks); !walk.done(); walk.Next()) {
    if (walk.pair() == nullptr) return bad("blocks are too large for one operation");
    const BlockPair& pair = *walk.pair();
    const auto* const here =
        static_cast<const CudaIpcRegistration*>(view.registrations[pair.local_region]);
    const auto* const there = static_cast<const CudaIpcRemoteKey*>(view.keys[pair.remote_region]);
    if (here == nullptr || there == nullptr || there->endpoint() != this) return NotOfThis();
    if (here->parts() != 1 || !there->region()->one_part() ||
        !CopyQueue::Holds(view, pair, *here, *there->region())) {
      return bad("a region consists of several allocations, or its blocks leave it");
    }
    if (absl::Status good = CheckSides(here, there, op.kind); !good.ok()) return good;
  }
  for (const DeviceIdList* const ids : {&view.local_device_ids, &view.remote_device_ids}) {
    if (ids->at == 0) continue;
    const auto* const at = static_cast<const CudaIpcRegistration*>(view.registrations[ids->region]);
    const bool there = at != nullptr && op_devices_ == std::vector<int>{at->device()};
    if (!there) return bad("they are not on the one GPU that copies");
  }
  return absl::OkStatus();
}

absl::Status CudaIpcDialledEndpoint::CheckBlocks(const Op& op, const PairWalk& blocks) {
  const BlockView& view = *op.blocks.view;
  const BlockPair& pair = *blocks.pair();
  const auto* const here =
      static_cast<const CudaIpcRegistration*>(view.registrations[pair.local_region]);
  const auto* const there = static_cast<const CudaIpcRemoteKey*>(view.keys[pair.remote_region]);
  if (here == nullptr || there == nullptr || there->endpoint() != this) {
    return CheckRuns(op, blocks.range());
  }
  if (!CopyQueue::Holds(view, pair, *here, *there->region())) {
    by_ids_ = false;
    return CheckRuns(op, blocks.range());
  }
  return CheckSides(here, there, op.kind);
}

absl::Status CudaIpcDialledEndpoint::CheckRuns(const Op& op, const BlockRange& range) {
  for (RunWalk walk(range); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    if (absl::Status good = CheckRun(run); !good.ok()) return good;
    const auto* const here = static_cast<const CudaIpcRegistration*>(run.registration);
    const auto* const there = static_cast<const CudaIpcRemoteKey*>(run.key);
    if (absl::Status good = CheckSides(here, there, op.kind); !good.ok()) return good;
  }
  return absl::OkStatus();
}

// Each key and each registration is looked at once, as long as they do not alternate.
absl::Status CudaIpcDialledEndpoint::CheckSides(const CudaIpcRegistration* here,
                                                const CudaIpcRemoteKey* there, OpKind kind) {
  if (std::exchange(last_key_, there) != there) {
    if (absl::Status good = CheckKey(*there, kind); !good.ok()) return good;
  }
  if (std::exchange(last_local_, here) != here &&
      std::ranges::find(op_devices_, here->device()) == op_devices_.end()) {
    op_devices_.push_back(here->device());
  }
  return absl::OkStatus();
}

absl::Status CudaIpcDialledEndpoint::CheckRun(const Run& run) const {
  const auto* const here = static_cast<const CudaIpcRegistration*>(run.registration);
  const auto* const there = static_cast<const CudaIpcRemoteKey*>(run.key);
  if (here == nullptr || there == nullptr || there->endpoint() != this) return NotOfThis();
  const PeerRegion& region = *there->region();
  if (here->Contains(run.local, run.bytes) &&
      Holds(region.base(), region.bytes(), run.remote, run.bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cuda_ipc: ", run.bytes, " bytes between local 0x", absl::Hex(run.local),
                   " and remote 0x", absl::Hex(run.remote), " leave region ",
                   static_cast<uint32_t>(there->told().id), " or the local one"));
}

absl::Status CudaIpcDialledEndpoint::CheckKey(const CudaIpcRemoteKey& key, OpKind kind) const {
  const Access wanted = kind == OpKind::kWrite ? Access::kRemoteWrite : Access::kRemoteRead;
  const RemoteRegion& told = key.told();
  const PeerRegion& region = *key.region();
  if (region.gone()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda_ipc: region ", static_cast<uint32_t>(told.id), " of ",
                     region.owner().ToString(), " was deregistered there"));
  }
  if (!Allows(region.access(), wanted) || !Allows(told.access, wanted)) {
    return absl::PermissionDeniedError(
        absl::StrCat("cuda_ipc: the peer's region ", static_cast<uint32_t>(told.id),
                     " is not registered for this; register it with the right Access there"));
  }
  return absl::OkStatus();
}

Posted CudaIpcDialledEndpoint::Post(const Op& op) {
  if (!up() || ended_) return false;
  // Counts completions since the last Poll: they wait in the event queue, which must stay bounded.
  if (std::exchange(poll_, backend_->hub().poll_number()) != poll_) at_once_ = 0;
  if (ops_ >= kMaxOps || bytes_ >= kMaxBytes || at_once_ >= kMaxAtOnce) return false;
  const absl::Status status = CheckOp(op);
  if (!status.ok() || op.blocks.bytes == 0) {
    ++at_once_;
    Say(EventKind::kCompletion, op.id, status, op.rail);
    return true;
  }
  ++ops_;
  bytes_ += op.blocks.bytes;
  backend_->copies().Add(this, op, op_devices_, by_ids_);
  backend_->copies().Start();
  return true;
}

void CudaIpcDialledEndpoint::OnCopied(const Op& op, const absl::Status& status) {
  --ops_;
  bytes_ -= op.blocks.bytes;
  Say(EventKind::kCompletion, op.id, status, op.rail);
  if (!fencing_.empty()) {
    const size_t due = std::erase_if(fencing_, [&](uint64_t transfer) {
      return transfer == op.transfer && backend_->copies().Running(this, transfer) == 0;
    });
    for (size_t i = 0; i < due; ++i) Emit(MakeFenced(this, {.transfer = op.transfer}));
  }
  if (!down() || ops_ > 0) return;
  BeQuiet();
  FinishDown();
}

// A copy that a GPU has begun cannot be taken back. Waiting for it takes some milliseconds at most.
void CudaIpcDialledEndpoint::Fence(FenceScope scope) {
  const uint64_t transfer = scope.transfer;
  if (!up() || ended_ || transfer == FenceScope::kEveryTransfer) return;
  backend_->copies().Drop(this, transfer,
                          absl::CancelledError("cuda_ipc: fenced before it was copied"));
  if (backend_->copies().Running(this, transfer) == 0) {
    Emit(MakeFenced(this, scope));
  } else {
    fencing_.push_back(transfer);
  }
}

bool CudaIpcDialledEndpoint::IsQuiet() const { return ops_ == 0; }

void CudaIpcDialledEndpoint::EndData(const absl::Status& why) {
  ended_ = true;
  fencing_.clear();
  if (backend_ == nullptr) return;
  backend_->copies().Drop(this, 0, why);
  if (ops_ == 0) BeQuiet();
}

// The order is the accepting side's proof: the last copy ends, then kQuiet is sent. If a GPU's
// context is broken, it is unknown whether copies still run, so kQuiet is not sent and the
// accepting side waits for the end of this process.
void CudaIpcDialledEndpoint::BeQuiet() {
  ReleaseAll();
  if (lifeline_ == nullptr) return;
  if (!backend_->copies().broken()) {
    lifeline_->Send(PacketType::kQuiet, wire::Encode(QuietPacket{}));
  }
  lifeline_.reset();
}

// The backend has waited for running copies.
void CudaIpcDialledEndpoint::OnDetached() {
  BeQuiet();
  backend_ = nullptr;
}

}  // namespace kvxfer::cuda_ipc
