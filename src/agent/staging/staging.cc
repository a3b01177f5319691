#include "src/agent/staging/staging.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
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
  return MakeCopier(**driver, device);
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

// Open runs on a thread of the application and copiers_ belongs to the driver, which takes the new
// copier over from made_.
absl::Status Staging::MakeCopier(const cuda::Driver& driver, int device) {
  if (devices_.contains(device)) return absl::OkStatus();
  auto copier = cuda::Copier::Create(&driver, device, copy_sms_);
  if (!copier.ok()) return copier.status();
  devices_.insert(device);
  std::lock_guard lock(made_mu_);
  made_.emplace(device, *std::move(copier));
  return absl::OkStatus();
}

void Staging::TakeMade() {
  std::lock_guard lock(made_mu_);
  copiers_.merge(made_);
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

void Staging::Move(User* user, uint64_t key, uint32_t buffer, bool into_buffer,
                   std::vector<Piece> pieces) {
  Job& job = jobs_.emplace_back();
  job.user = user;
  job.key = key;
  job.buffer = buffer;
  job.into_buffer = into_buffer;
  job.pieces = std::move(pieces);
  for (const Piece& piece : job.pieces) {
    if (piece.device >= 0) job.devices.insert(piece.device);
  }
  // Host pieces are copied here; GPU pieces by their GPUs, which report the end.
  CopyHost(job);
  Begin(job);
}

void Staging::Forget(User* user, const std::set<uint32_t>& own_buffers) {
  for (Job& job : jobs_) {
    if (job.user != user) continue;
    job.user = nullptr;
    job.give_own = own_buffers.contains(job.buffer);
  }
}

cuda::Copier* Staging::CopierOf(int device) const {
  const auto it = copiers_.find(device);
  return it == copiers_.end() ? nullptr : it->second.get();
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

void Staging::CopyHost(const Job& job) const {
  std::byte* at = At(job.buffer);
  for (const Piece& piece : job.pieces) {
    auto* memory = reinterpret_cast<std::byte*>(piece.address);
    if (piece.device < 0) {
      std::memcpy(job.into_buffer ? at : memory, job.into_buffer ? memory : at, piece.bytes);
    }
    at += piece.bytes;
  }
}

void Staging::Begin(Job& job) {
  if (job.devices.empty()) return;
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

absl::Status Staging::BeginOn(Job& job, int device) {
  cuda::Copier* const copier = CopierOf(device);
  if (copier == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory of GPU ", device, " was registered without staging"));
  }
  scratch_.clear();
  auto at = reinterpret_cast<uint64_t>(At(job.buffer));
  for (const Piece& piece : job.pieces) {
    if (piece.device == device) {
      scratch_.push_back(job.into_buffer
                             ? cuda::Piece{.to = at, .from = piece.address, .bytes = piece.bytes}
                             : cuda::Piece{.to = piece.address, .from = at, .bytes = piece.bytes});
    }
    at += piece.bytes;
  }
  const auto batch = copier->Start({.pieces = scratch_, .reach = cuda::Reach::kHost});
  // If no batch is under way, the copier was not full: the CUDA driver lacked memory, and waiting
  // would not help.
  if (absl::IsResourceExhausted(batch.status()) && copier->idle()) {
    return absl::UnavailableError(batch.status().message());
  }
  if (!batch.ok()) return batch.status();
  job.left.push_back({.device = device, .number = *batch});
  return absl::OkStatus();
}

void Staging::TakeEnds(int device, cuda::Copier& copier) {
  while (const auto end = copier.Poll()) {
    for (Job& job : jobs_) {
      const auto same = [&](const Batch& batch) {
        return batch.device == device && batch.number == end->batch;
      };
      if (std::erase_if(job.left, same) == 0) continue;
      job.status.Update(end->status);
      break;
    }
  }
}

bool Staging::Poll() {
  if (jobs_.empty()) return false;
  for (auto& [device, copier] : copiers_) TakeEnds(device, *copier);
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
    if (job.give_own) GiveOwn(job.buffer);
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
  for (const auto& [device, copier] : copiers_) {
    if (const std::optional<Time> at = copier->NextPoll()) next = std::min(next, *at);
  }
  return next;
}

std::string Staging::Describe() const {
  if (!open()) return "";
  std::string how;
  for (const auto& [device, copier] : copiers_) {
    absl::StrAppend(&how, how.empty() ? "" : "; ", "GPU ", device, ": ", copier->Describe());
  }
  return absl::StrCat(buffers_ * kBufferBytes >> 20, " MiB of pinned host memory",
                      how.empty() ? "" : ", ", how);
}

}  // namespace kvxfer
