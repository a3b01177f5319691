#include "src/cuda/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

constexpr char kDriverLibrary[] = "libcuda.so.1";

// This process was forked from one that had initialised the CUDA driver. The driver does not work
// here and its locks must not be touched. Objects that were made before the fork are leaked
// silently.
std::atomic<bool> forked_with_driver = false;

absl::Status CheckNotForked() {
  if (!forked_with_driver.load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "CUDA cannot be used in this process: it was forked after its parent had initialised CUDA; "
      "start workers anew (spawn), or fork before CUDA is used");
}

// How many libraries this process has loaded so far; 0: unknown.
uint64_t LibrariesLoaded() {
  uint64_t loaded = 0;
  // The count is global, so the first entry suffices: returning 1 ends the iteration.
  const auto first = [](dl_phdr_info* info, size_t bytes, void* out) {
    const bool told = bytes >= offsetof(dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds);
    if (told) *static_cast<uint64_t*>(out) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &loaded);
  return loaded;
}

absl::Status WhyNotLoaded(const char* words) {
  const std::string_view why = words == nullptr ? "no reason told" : words;
  if (why.find("cannot open shared object file: No such file") == std::string_view::npos) {
    return absl::UnavailableError(absl::StrCat("the CUDA driver cannot be loaded (", ToAbsl(why),
                                               "); install it anew, for this architecture"));
  }
  return absl::UnimplementedError(
      absl::StrCat("no CUDA driver here (", ToAbsl(why),
                   "); on a machine with a GPU install NVIDIA's driver, in a container ask for "
                   "GPUs (--gpus all)"));
}

}  // namespace

// Retained once and never released: the CUDA driver may be gone before the last static object is.
struct Driver::Contexts {
  explicit Contexts(size_t devices) : primary(devices) {}

  std::mutex mu;  // guards the rest; `primary` is also read without it
  std::vector<std::atomic<CUcontext>> primary;  // by ordinal; null: not retained yet
  std::set<std::pair<int, int>> peers;          // from, to
};

Driver::Driver() = default;
Driver::~Driver() = default;

absl::StatusOr<const Driver*> Driver::Get() {
  if (auto status = CheckNotForked(); !status.ok()) return status;
  // Never destroyed, for the reason above. Leak checkers find it through this pointer.
  static const auto* const loaded = new absl::StatusOr<std::unique_ptr<Driver>>(Load());
  if (!loaded->ok()) return loaded->status();
  return (*loaded)->get();
}

// A CUDA driver that another library has initialised is used too; that costs no more than asking
// it. Searching for it is what costs. So after a search that found none, the next search waits
// until the process has loaded another library; and a driver that is in use stays in use.
const Driver* Driver::IfInUse() {
  if (!CheckNotForked().ok()) return nullptr;
  static std::atomic<const Driver*> in_use = nullptr;
  if (const Driver* const known = in_use.load(std::memory_order_acquire)) return known;
  static std::atomic<uint64_t> looked_at = 0;
  const uint64_t loaded = LibrariesLoaded();
  if (loaded != 0 && looked_at.load(std::memory_order_relaxed) == loaded) return nullptr;
  void* const library = dlopen(kDriverLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    looked_at.store(loaded, std::memory_order_relaxed);
    return nullptr;
  }
  // Fails with CUDA_ERROR_NOT_INITIALIZED while nobody has called cuInit.
  const auto current =
      reinterpret_cast<CUresult (*)(CUcontext*)>(dlsym(library, "cuCtxGetCurrent"));
  CUcontext context = nullptr;
  const bool used = current != nullptr && current(&context) == CUDA_SUCCESS;
  dlclose(library);
  if (!used) return nullptr;
  const auto driver = Get();
  if (!driver.ok()) return nullptr;
  in_use.store(*driver, std::memory_order_release);
  return *driver;
}

absl::StatusOr<std::unique_ptr<Driver>> Driver::Load() {
  // Stays loaded: the CUDA driver cannot be unloaded while contexts exist.
  void* const library = dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return WhyNotLoaded(dlerror());
  std::unique_ptr<Driver> driver(new Driver());
  if (auto status = driver->FindCalls(library); !status.ok()) return status;
  if (auto status = driver->Error(driver->calls_.cuInit(0), "cuInit"); !status.ok()) {
    return Annotate(status, "the CUDA driver cannot be used");
  }
  // Registered after cuInit succeeded: a child of an earlier fork may still use CUDA.
  pthread_atfork(nullptr, nullptr,
                 [] { forked_with_driver.store(true, std::memory_order_relaxed); });
  if (auto status =
          driver->Error(driver->calls_.cuDriverGetVersion(&driver->version_), "cuDriverGetVersion");
      !status.ok()) {
    return status;
  }
  if (auto status = driver->FindDevices(); !status.ok()) return status;
  driver->contexts_ = std::make_unique<Contexts>(driver->devices_.size());
  return driver;
}

absl::Status Driver::FindCalls(void* library) {
  std::string missing;
#define KVXFER_CUDA_FIND(name, parameters) \
  calls_.name = reinterpret_cast<decltype(calls_.name)>(dlsym(library, #name));
#define KVXFER_CUDA_NEED(name, parameters) \
  KVXFER_CUDA_FIND(name, parameters)       \
  if (calls_.name == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", #name);
  KVXFER_CUDA_CALLS(KVXFER_CUDA_NEED)
  KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_CUDA_FIND)
#undef KVXFER_CUDA_NEED
#undef KVXFER_CUDA_FIND
  if (missing.empty()) return absl::OkStatus();
  int version = 0;
  const bool told =
      calls_.cuDriverGetVersion != nullptr && calls_.cuDriverGetVersion(&version) == CUDA_SUCCESS;
  return absl::UnavailableError(absl::StrCat(
      "the CUDA driver is too old",
      told ? absl::StrCat(" (for CUDA ", version / 1000, ".", version % 1000 / 10, ")") : "",
      ": it lacks ", missing, "; 11.4 or newer is needed (update it)"));
}

absl::StatusOr<const Device*> Driver::device(int ordinal) const {
  if (ordinal >= 0 && static_cast<size_t>(ordinal) < devices_.size())
    return &devices_[static_cast<size_t>(ordinal)];
  return absl::InvalidArgumentError(absl::StrCat("no CUDA device ", ordinal, ": this process sees ",
                                                 devices_.size(),
                                                 ", numbered from 0 (CUDA_VISIBLE_DEVICES)"));
}

const Device* Driver::FindUuid(std::string_view uuid) const {
  for (const Device& device : devices_) {
    if (device.uuid == uuid) return &device;
  }
  return nullptr;
}

absl::StatusOr<CUcontext> Driver::Context(int ordinal) const {
  if (auto status = CheckNotForked(); !status.ok()) return status;
  if (auto known = device(ordinal); !known.ok()) return known.status();
  // Double-checked: the acquire pairs with the release below, so that the common case takes no
  // lock.
  std::atomic<CUcontext>& kept = contexts_->primary[static_cast<size_t>(ordinal)];
  if (const CUcontext context = kept.load(std::memory_order_acquire); context != nullptr) {
    return context;
  }
  const std::lock_guard lock(contexts_->mu);
  if (const CUcontext context = kept.load(std::memory_order_relaxed); context != nullptr) {
    return context;
  }
  CUdevice gpu = 0;
  absl::Status status = Error(calls_.cuDeviceGet(&gpu, ordinal), "cuDeviceGet");
  CUcontext context = nullptr;
  if (status.ok()) {
    status = Error(calls_.cuDevicePrimaryCtxRetain(&context, gpu), "cuDevicePrimaryCtxRetain");
  }
  if (!status.ok()) return Annotate(status, absl::StrCat("GPU ", ordinal));
  kept.store(context, std::memory_order_release);
  return context;
}

std::optional<int> Driver::FindContext(CUcontext context) const {
  const auto found = std::ranges::find_if(contexts_->primary, [&](const auto& kept) {
    return kept.load(std::memory_order_acquire) == context;
  });
  if (context == nullptr || found == contexts_->primary.end()) return std::nullopt;
  return static_cast<int>(found - contexts_->primary.begin());
}

absl::Status Driver::EnablePeerAccess(int from, int to) const {
  if (from == to) return device(from).status();
  const auto peer = Context(to);
  if (!peer.ok()) return peer.status();
  const ContextScope scope(*this, from);
  if (!scope.status().ok()) return scope.status();
  // cuCtxEnablePeerAccess works on the context that is current: that of `from`.
  const std::lock_guard lock(contexts_->mu);
  if (contexts_->peers.contains({from, to})) return absl::OkStatus();
  CUdevice gpu = 0;
  CUdevice other = 0;
  int can = 0;
  CUresult result = calls_.cuDeviceGet(&gpu, from);
  if (result == CUDA_SUCCESS) result = calls_.cuDeviceGet(&other, to);
  if (result == CUDA_SUCCESS) result = calls_.cuDeviceCanAccessPeer(&can, gpu, other);
  if (result == CUDA_SUCCESS) {
    result = can == 0 ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : calls_.cuCtxEnablePeerAccess(*peer, 0);
  }
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
    contexts_->peers.insert({from, to});
    return absl::OkStatus();
  }
  return Annotate(Error(result, "cuCtxEnablePeerAccess"),
                  absl::StrCat("GPU ", from, " (", devices_[static_cast<size_t>(from)].name,
                               ") to GPU ", to, " (", devices_[static_cast<size_t>(to)].name, ")"));
}

namespace {

// Whose thread this is.
enum class Thread : uint8_t {
  kForeign,
  kOwn,
  kOwnRelaxed
};  // kOwnRelaxed: its capture mode is set
thread_local Thread thread_kind = Thread::kForeign;
thread_local const ContextScope* innermost = nullptr;

}  // namespace

void ContextScope::OwnThread() { thread_kind = Thread::kOwn; }

ContextScope::ContextScope(const Driver& driver, int ordinal, For what)
    : driver_(driver), for_(what), outer_(innermost) {
  const auto context = driver.Context(ordinal);
  status_ = context.status();
  if (!status_.ok()) return;
  context_ = *context;
  const bool served = outer_ != nullptr && outer_->context_ == context_ &&
                      (outer_->for_ == For::kAnything || for_ == For::kQueueing);
  if (!served) Enter();
}

ContextScope::~ContextScope() {
  if (entered_ != Entered::kServed) Leave();
}

void ContextScope::Enter() {
  Entered entered = Entered::kOwn;
  if (thread_kind != Thread::kForeign) {
    status_ = MakeCurrent();
    if (status_.ok() && std::exchange(thread_kind, Thread::kOwnRelaxed) == Thread::kOwn) {
      ExchangeCaptureMode();
    }
  } else {
    CUcontext now = nullptr;
    const bool current = driver_.calls().cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == context_;
    entered = current ? Entered::kWasCurrent : Entered::kPushed;
    if (!current) {
      status_ = driver_.Error(driver_.calls().cuCtxPushCurrent_v2(context_), "cuCtxPushCurrent");
    }
    if (status_.ok() && for_ == For::kAnything) ExchangeCaptureMode();
  }
  if (!status_.ok()) return;
  entered_ = entered;
  innermost = this;
}

void ContextScope::Leave() {
  innermost = outer_;
  if (entered_ == Entered::kOwn) {
    // What lies around it was entered with another context.
    if (outer_ != nullptr) outer_->MakeCurrent().IgnoreError();
    return;
  }
  // The mode belongs to the thread, so it is exchanged back before the previous context is
  // restored.
  if (for_ == For::kAnything) ExchangeCaptureMode();
  CUcontext own = nullptr;
  if (entered_ == Entered::kPushed) driver_.calls().cuCtxPopCurrent_v2(&own);
}

// A callback of the application may have made another one current.
absl::Status ContextScope::MakeCurrent() const {
  CUcontext now = nullptr;
  const CUresult got = driver_.calls().cuCtxGetCurrent(&now);
  if (got != CUDA_SUCCESS) return driver_.Error(got, "cuCtxGetCurrent");
  if (now == context_) return absl::OkStatus();
  return driver_.Error(driver_.calls().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

void ContextScope::ExchangeCaptureMode() {
  const auto exchange = driver_.calls().cuThreadExchangeStreamCaptureMode;
  if (exchange != nullptr) exchange(&capture_mode_);
}

}  // namespace kvxfer::cuda
