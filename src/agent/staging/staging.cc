#include "src/agent/staging/staging.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// While it lives, this thread's new pages come from NUMA node `node`, if that has free ones.
class PreferNode {
 public:
  explicit PreferNode(int node) {
    if (node < 0 || node >= kNodes) return;
    const unsigned long mask = 1ul << node;  // NOLINT(google-runtime-int): the system call's
    // The kernel uses one bit less of the mask than this argument says.
    set_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, kNodes + 1) == 0;
  }
  ~PreferNode() {
    if (set_) syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  }
  PreferNode(const PreferNode&) = delete;
  PreferNode& operator=(const PreferNode&) = delete;

 private:
  static constexpr int kNodes = 64;
  bool set_ = false;
};

}  // namespace

Staging::Staging(uint64_t bytes, uint32_t copy_sms)
    : buffers_(static_cast<uint32_t>(bytes / kBufferBytes)), copy_sms_(copy_sms) {
  for (uint32_t buffer = buffers_; buffer > lent_buffers(); --buffer) own_.push_back(buffer - 1);
}

Staging::~Staging() = default;

absl::Status Staging::Open(int device) {
  std::lock_guard lock(mu_);
  if (buffers_ < kMinBytes / kBufferBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no staging memory: `staging_bytes` (KVXFER_STAGING_BYTES) is below ",
                     kMinBytes, ", the least that works"));
  }
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  if (auto status = MakeBuffers(**driver, device); !status.ok()) return status;
  return MakeGpu(**driver, device);
}

absl::Status Staging::MakeBuffers(const cuda::Driver& driver, int device) {
  if (open()) return absl::OkStatus();
  const auto gpu = driver.device(device);
  if (!gpu.ok()) return gpu.status();
  const PreferNode prefer((*gpu)->numa_node);
  auto memory = HostBuffer::Allocate(buffers_ * kBufferBytes);
  if (!memory.ok()) return Annotate(memory.status(), "staging memory");
  auto pinned = cuda::Pinned::Pin(&driver, device, memory->data(), memory->size());
  if (!pinned.ok()) return Annotate(pinned.status(), "staging memory");
  memory_ = *std::move(memory);
  pinned_ = *std::move(pinned);
  data_ = memory_.data();
  return absl::OkStatus();
}

// Open runs on a thread of the application and gpus_ belongs to the driver, which takes the new one
// over from made_.
absl::Status Staging::MakeGpu(const cuda::Driver& driver, int device) {
  if (devices_.contains(device)) return absl::OkStatus();
  Gpu gpu;
  auto copier = cuda::Copier::Create(&driver, device, copy_sms_);
  if (!copier.ok()) return copier.status();
  gpu.copier = *std::move(copier);
  // Without it kernels copy to and from the host, which takes longer.
  auto bounce = cuda::DeviceMemory::Allocate(&driver, device, kBounces * kBufferBytes);
  if (bounce.ok()) {
    gpu.bounce = *std::move(bounce);
    for (size_t i = kBounces; i > 0; --i) {
      gpu.parts.push_back(gpu.bounce.at() + (i - 1) * kBufferBytes);
    }
  }
  devices_.insert(device);
  std::lock_guard lock(made_mu_);
  made_.emplace(device, std::move(gpu));
  return absl::OkStatus();
}

void Staging::TakeMade() {
  std::lock_guard lock(made_mu_);
  gpus_.merge(made_);
}

void Staging::Close() {
  for (auto& [device, gpu] : gpus_) {
    while (!gpu.copier->idle()) {
      TakeEnds(device, gpu);
      std::this_thread::yield();
    }
  }
  gpus_.clear();
  jobs_.clear();
}

MemorySpan Staging::span() const { return open() ? memory_.span() : MemorySpan(); }

void Staging::AddRegion(RegionId id, cuda::DeviceSpan span) {
  TakeMade();
  regions_.emplace(id, std::move(span));
}

bool Staging::InUse(RegionId id) const {
  const auto touches = [id](const Job& job) {
    return std::ranges::any_of(job.pieces, [id](const Piece& piece) { return piece.region == id; });
  };
  return std::ranges::any_of(jobs_, touches);
}

std::optional<uint32_t> Staging::TakeOwn() {
  if (!open() || own_.empty()) return std::nullopt;
  const uint32_t buffer = own_.back();
  own_.pop_back();
  return buffer;
}

void Staging::Move(User* user, uint64_t key, Place place, bool into_place,
                   std::vector<Piece> pieces) {
  Job& job = jobs_.emplace_back();
  job.user = user;
  job.key = key;
  job.place = std::move(place);
  job.into_place = into_place;
  job.pieces = std::move(pieces);
  bool host = false;
  for (const Piece& piece : job.pieces) {
    job.bytes += piece.bytes;
    if (piece.device >= 0) {
      job.devices.insert(piece.device);
    } else {
      host = true;
    }
  }
  // A part of the bounce holds everything or nothing: a copy engine moves it in one piece.
  job.bounces = !host && job.devices.size() == 1 && job.bytes >= kLeastBounced;
  // Host pieces are copied here; GPU pieces by their GPUs, which report the end.
  CopyHost(job);
  Begin(job);
}

void Staging::Forget(User* user, const std::set<uint32_t>& own_buffers) {
  for (Job& job : jobs_) {
    if (job.user != user) continue;
    job.user = nullptr;
    for (const uint32_t buffer : own_buffers) {
      if (At(buffer) == job.place.at) job.own = buffer;
    }
  }
}

// A kernel that touches freed memory would break the application's CUDA context. So each region
// that a job touches is checked before its first batch.
absl::Status Staging::CheckAlive(const Job& job) {
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  ++checks_;
  absl::Status status;
  std::vector<cuda::WatchedSpan*> touched;
  for (const Piece& piece : job.pieces) {
    if (piece.device < 0 || piece.bytes == 0) continue;
    const auto it = regions_.find(piece.region);
    if (it == regions_.end()) {
      status = absl::FailedPreconditionError(absl::StrCat(
          "region ", static_cast<uint32_t>(piece.region), " of GPU memory was deregistered"));
      break;
    }
    it->second.Touch(piece.address, piece.bytes, checks_);
    if (it->second.FirstTouched()) touched.push_back(&it->second);
  }
  for (cuda::WatchedSpan* const span : touched) status.Update(span->Check(**driver));
  return status;
}

void Staging::CopyHost(const Job& job) {
  std::byte* at = job.place.at;
  for (const Piece& piece : job.pieces) {
    auto* memory = reinterpret_cast<std::byte*>(piece.address);
    if (piece.device < 0) {
      std::memcpy(job.into_place ? at : memory, job.into_place ? memory : at, piece.bytes);
    }
    at += piece.bytes;
  }
}

void Staging::Begin(Job& job) {
  if (job.devices.empty() || WaitsForBounce(job)) return;
  absl::Status status = job.left.empty() ? CheckAlive(job) : absl::OkStatus();
  while (status.ok() && !job.devices.empty()) {
    status = BeginOn(job, *job.devices.begin());
    if (absl::IsResourceExhausted(status)) return;  // try again at the next Poll
    if (status.ok()) job.devices.erase(job.devices.begin());
  }
  if (status.ok()) return;
  job.status = status;
  job.devices.clear();
}

// Its one GPU has no part left; it begins at a later Poll.
bool Staging::WaitsForBounce(const Job& job) const {
  const auto gpu = job.bounces ? gpus_.find(*job.devices.begin()) : gpus_.end();
  return gpu != gpus_.end() && gpu->second.bounce.at() != 0 && gpu->second.parts.empty();
}

absl::Status Staging::BeginOn(Job& job, int device) {
  const auto it = gpus_.find(device);
  if (it == gpus_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory of GPU ", device, " was registered without staging"));
  }
  Gpu& gpu = it->second;
  const bool bounces = job.bounces && gpu.bounce.at() != 0;
  const uint64_t bounce = bounces ? gpu.parts.back() : 0;
  const auto batch = gpu.copier->Start(BatchOf(job, device, bounce));
  // If no batch is under way, the copier was not full: the CUDA driver lacked memory, and waiting
  // would not help.
  if (absl::IsResourceExhausted(batch.status()) && gpu.copier->idle()) {
    return absl::UnavailableError(batch.status().message());
  }
  if (!batch.ok()) return batch.status();
  if (bounce != 0) gpu.parts.pop_back();
  job.left.push_back({.device = device, .number = *batch, .bounce = bounce});
  return absl::OkStatus();
}

// The pieces of `job` that lie on `device`. Valid until the next call.
cuda::CopyBatch Staging::BatchOf(const Job& job, int device, uint64_t bounce) {
  const auto host = reinterpret_cast<uint64_t>(job.place.at);
  uint64_t at = bounce != 0 ? bounce : host;
  scratch_.clear();
  for (const Piece& piece : job.pieces) {
    if (piece.device == device) {
      scratch_.push_back(job.into_place
                             ? cuda::Piece{.to = at, .from = piece.address, .bytes = piece.bytes}
                             : cuda::Piece{.to = piece.address, .from = at, .bytes = piece.bytes});
    }
    at += piece.bytes;
  }
  cuda::CopyBatch batch{.pieces = scratch_, .reach = cuda::Reach::kHost};
  if (bounce == 0) return batch;
  if (job.into_place) {
    batch.after = {.to = host, .from = bounce, .bytes = job.bytes};
  } else {
    batch.before = {.to = bounce, .from = host, .bytes = job.bytes};
  }
  return batch;
}

void Staging::TakeEnds(int device, Gpu& gpu) {
  while (const auto end = gpu.copier->Poll()) {
    for (Job& job : jobs_) {
      const auto batch = std::ranges::find_if(job.left, [&](const Batch& left) {
        return left.device == device && left.number == end->batch;
      });
      if (batch == job.left.end()) continue;
      if (batch->bounce != 0) gpu.parts.push_back(batch->bounce);
      job.left.erase(batch);
      job.status.Update(end->status);
      if (gpu.copier->broken() && job.place.hold != nullptr) job.place.hold->doubt = true;
      break;
    }
  }
}

bool Staging::Poll() {
  if (jobs_.empty()) return false;
  for (auto& [device, gpu] : gpus_) TakeEnds(device, gpu);
  for (Job& job : jobs_) Begin(job);
  bool any = false;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (!it->over()) {
      ++it;
      continue;
    }
    any = true;
    const Job job = std::move(*it);
    it = jobs_.erase(it);
    if (job.own) GiveOwn(*job.own);
    // OnMoved may begin another copy, which is appended to jobs_.
    if (job.user != nullptr) job.user->OnMoved(job.key, job.status);
  }
  return any;
}

Time Staging::NextPoll() const {
  Time next = Time::max();
  if (jobs_.empty()) return next;
  // What could not begin, or had nothing for a GPU to do, is reported by Poll too.
  if (std::ranges::any_of(jobs_, &Job::over)) return Time{};
  for (const auto& [device, gpu] : gpus_) {
    if (const std::optional<Time> at = gpu.copier->NextPoll()) next = std::min(next, *at);
  }
  return next;
}

std::string Staging::Describe() const {
  if (!open()) return "";
  std::string how;
  for (const auto& [device, gpu] : gpus_) {
    absl::StrAppend(&how, how.empty() ? "" : "; ", "GPU ", device, ": ", gpu.copier->Describe(),
                    gpu.bounce.at() != 0 ? ", copy engines" : ", no memory left for copy engines");
  }
  return absl::StrCat(buffers_ * kBufferBytes >> 20, " MiB of pinned host memory",
                      how.empty() ? "" : ", ", how);
}

}  // namespace kvxfer
