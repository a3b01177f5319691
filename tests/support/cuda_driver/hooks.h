// What a test may ask of the stand-in CUDA driver beyond the driver's own calls. The functions are
// exported by the stand-in's libcuda.so.1 beside the cu... ones; a program that has loaded another
// driver, or none, finds none of them.
//
//   const cuda_driver::Hooks* hooks = cuda_driver::FindHooks();
//   if (hooks == nullptr) ...  // suites: tests/support/needs_stand_in.h
//   hooks->kvxfer_standin_fail("cuMemcpyAsync", 2, CUDA_ERROR_OUT_OF_MEMORY);
//
// Settings that hold from cuInit on come from the environment: config.h has them. Results of type
// int are CUresults. From Python: ctypes.CDLL("libcuda.so.1").
//
// Thread-safety: from any thread, but not from within a host function of a stream.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_HOOKS_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_HOOKS_H_

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/cuda/api.h"

namespace kvxfer::testing::cuda_driver {

// Objects that are there now, in this process.
struct LiveObjects {
  uint64_t contexts = 0;      // retained primary contexts
  uint64_t retains = 0;       // of those, all counts added up
  uint64_t allocations = 0;   // cuMemAlloc, cuMemAllocManaged, cuMemAllocAsync
  uint64_t ipc_mappings = 0;  // opened IPC handles, each once
  uint64_t reservations = 0;  // cuMemAddressReserve
  uint64_t mappings = 0;      // cuMemMap
  uint64_t handles = 0;       // cuMemCreate and imports that are not released
  uint64_t pinned = 0;        // registered host ranges
  uint64_t streams = 0;       // made by cuStreamCreateWithPriority
  uint64_t events = 0;
  uint64_t modules = 0;
  uint64_t dmabufs = 0;  // exported ranges of which a descriptor is open in this process

  bool operator==(const LiveObjects&) const = default;
};

// X(result, function, (parameters)).
//
// alias: where the CPU of a test sees [at, at + bytes) of device, IPC or managed memory; null where
//   that is not memory of one kind, in one allocation or mapped side by side. Ends with the memory.
// fail: the `nth` next call (1: the next) of `call` has no effect and gives `error`; 0: every one.
// A
//   sticky error also ruins the current context. Several can be pending.
// fail_async: the `nth` next operation that a stream begins does nothing and ruins its context.
// fail_none: forgets what is pending, of both.
// calls: how often `call` was made, failed ones too; of all calls with null.
// default_stream_uses: calls that used the legacy default stream, or are ordered with it.
// pageable_copies: copies that had host memory at one side that is not pinned.
// pause: streams begin no operation until pause(0). What has begun ends.
// set_delay: as KVXFER_STANDIN_DELAY_US.
// set_attribute: what cuDeviceGetAttribute of a device gives from now on, and how it behaves.
// capture: a stream is being captured from now on, as by cuStreamBeginCapture in global mode; or no
//   more: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901) where a call has spoilt the graph meanwhile.
// nic_may: whether a NIC may be given this memory: 0, or what ibv_reg_mr would say (EFAULT).
// nic_write: a NIC writes into device memory. Neither kernels nor copies nor alias() see the bytes
//   before they were flushed (cuFlushGPUDirectRDMAWrites, or nic_read of the same device), unless
//   the device's ordering attribute says owner or all.
// nic_read: a NIC reads device memory, and so pushes what was written before.
// nic_pending: bytes written that nobody sees yet.
// dmabuf: the device memory that a descriptor of cuMemGetHandleForAddressRange stands for.
#define KVXFER_STANDIN_HOOKS(X)                                                         \
  X(std::byte*, kvxfer_standin_alias, (uint64_t at, uint64_t bytes))                    \
  X(int, kvxfer_standin_fail, (const char* call, int nth, int error))                   \
  X(void, kvxfer_standin_fail_async, (int nth, int error))                              \
  X(void, kvxfer_standin_fail_none, ())                                                 \
  X(uint64_t, kvxfer_standin_calls, (const char* call))                                 \
  X(uint64_t, kvxfer_standin_default_stream_uses, ())                                   \
  X(uint64_t, kvxfer_standin_pageable_copies, ())                                       \
  X(void, kvxfer_standin_live, (::kvxfer::testing::cuda_driver::LiveObjects * objects)) \
  X(void, kvxfer_standin_pause, (int paused))                                           \
  X(void, kvxfer_standin_set_delay, (unsigned microseconds))                            \
  X(int, kvxfer_standin_set_attribute, (int device, int attribute, int value))          \
  X(int, kvxfer_standin_capture, (::kvxfer::cuda::api::CUstream stream, int capturing)) \
  X(int, kvxfer_standin_nic_may, (uint64_t at, uint64_t bytes))                         \
  X(int, kvxfer_standin_nic_write, (uint64_t at, const void* from, uint64_t bytes))     \
  X(int, kvxfer_standin_nic_read, (uint64_t at, void* to, uint64_t bytes))              \
  X(uint64_t, kvxfer_standin_nic_pending, (int device))                                 \
  X(int, kvxfer_standin_dmabuf, (int fd, uint64_t* at, uint64_t* bytes))

struct Hooks {
#define KVXFER_STANDIN_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  KVXFER_STANDIN_HOOKS(KVXFER_STANDIN_MEMBER)
#undef KVXFER_STANDIN_MEMBER
};

// Every function of the driver that kvxfer calls, to make each fail in turn.
inline constexpr const char* kCalls[] = {
#define KVXFER_STANDIN_NAME(name, parameters) #name,
    KVXFER_CUDA_CALLS(KVXFER_STANDIN_NAME) KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_STANDIN_NAME)
#undef KVXFER_STANDIN_NAME
};

inline Hooks HooksOf(void* library) {
  Hooks hooks;
#define KVXFER_STANDIN_FIND(result, name, parameters) \
  hooks.name = reinterpret_cast<decltype(hooks.name)>(dlsym(library, #name));
  KVXFER_STANDIN_HOOKS(KVXFER_STANDIN_FIND)
#undef KVXFER_STANDIN_FIND
  return hooks;
}

// Null unless this process has loaded the stand-in, by whomever. Loads nothing. Null too where
// KVXFER_TEST_NO_HOOKS is set, so that the stand-in is to tests what a real driver is.
inline const Hooks* FindHooks() {
  // Once found it is not looked for again, which takes long under a sanitizer.
  static std::atomic<const Hooks*> found{nullptr};
  if (const Hooks* const before = found.load()) return before;
  if (std::getenv("KVXFER_TEST_NO_HOOKS") != nullptr) return nullptr;
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  static const Hooks hooks = HooksOf(library);
  if (hooks.kvxfer_standin_alias == nullptr) return nullptr;
  found = &hooks;
  return &hooks;
}

// How many copies, or kernels that copy, streams have been given.
inline uint64_t Copies(const Hooks& hooks) {
  return hooks.kvxfer_standin_calls("cuLaunchKernel") + hooks.kvxfer_standin_calls("cuMemcpyAsync");
}

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_HOOKS_H_
