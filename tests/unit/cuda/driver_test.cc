// Loading the driver, and every way in which that fails; devices, contexts and errors. What
// concerns the loading happens in children: a process loads it once.
#include "src/cuda/driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "src/core/base/strings.h"
#include "src/cuda/memory.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_folder.h"
#include "tests/unit/cuda/test_util.h"

namespace kvxfer::cuda {
namespace {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names
using kvxfer::testing::Fails;
using kvxfer::testing::IsOk;
using kvxfer::testing::kAmple;
using kvxfer::testing::RunChild;
using kvxfer::testing::TestFolder;

// Arguments: a code, and words of the message. The answer of Get is that, and stays it.
KVXFER_CHILD(CudaGetFails) {
  for (int i = 0; i < 2; ++i) {
    const auto driver = Driver::Get();
    CHILD_EXPECT(!driver.ok());
    std::fprintf(stderr, "%s\n", driver.status().ToString().c_str());
    CHILD_EXPECT(absl::StatusCodeToString(driver.status().code()) == arguments[0]);
    for (size_t word = 1; word < arguments.size(); ++word) {
      CHILD_EXPECT(absl::StrContains(driver.status().message(), arguments[word]));
    }
    CHILD_EXPECT(Driver::IfInUse() == nullptr);
    // Host memory is host memory all the same.
    int here = 0;
    CHILD_EXPECT(CheckHostSpan({.data = &here, .bytes = sizeof(here)}).ok());
    // And what was called CUDA memory is told why not.
    CHILD_EXPECT(Examine(CudaSpan(1 << 20, 64)).status().code() == driver.status().code());
  }
  return 0;
}

int GetFails(const char* variable, const char* value, std::vector<std::string> expected) {
  const ScopedEnvironment environment(variable, value);
  return RunChild("CudaGetFails", std::move(expected), kAmple);
}

TEST(CudaDriverLoadTest, WithoutALibraryThereIsNoCuda) {
  EXPECT_EQ(GetFails("LD_LIBRARY_PATH", nullptr,
                     {"UNIMPLEMENTED", "no CUDA driver", "libcuda.so.1", "--gpus all"}),
            0);
}

TEST(CudaDriverLoadTest, AnOldDriverIsToldWhatItLacks) {
  EXPECT_EQ(GetFails("LD_LIBRARY_PATH", KVXFER_TEST_OLD_CUDA_DIR,
                     {"UNAVAILABLE", "too old (for CUDA 11.3)", "cuFlushGPUDirectRDMAWrites",
                      "11.4 or newer"}),
            0);
}

TEST(CudaDriverLoadTest, AFileThatIsNoLibraryIsNotTakenForNone) {
  const TestFolder folder;
  const std::string file = folder.path() + "/libcuda.so.1";
  std::ofstream(file) << "of another architecture, or cut off";
  EXPECT_EQ(
      GetFails("LD_LIBRARY_PATH", folder.path().c_str(), {"UNAVAILABLE", "cannot be loaded", file}),
      0);
}

TEST(CudaDriverLoadTest, EachFailureOfInitHasItsRemedy) {
  struct Case {
    const char* error;
    std::vector<std::string> expected;
  };
  const Case cases[] = {
      {"CUDA_ERROR_NO_DEVICE", {"UNIMPLEMENTED", "NO_DEVICE", "CUDA_VISIBLE_DEVICES"}},
      {"CUDA_ERROR_STUB_LIBRARY", {"UNAVAILABLE", "stub", "LD_LIBRARY_PATH"}},
      {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", {"UNAVAILABLE", "different versions", "reboot"}},
      {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", {"UNAVAILABLE", "cuda-compat"}},
      {"CUDA_ERROR_SYSTEM_NOT_READY", {"UNAVAILABLE", "fabricmanager"}},
      {"CUDA_ERROR_OPERATING_SYSTEM", {"UNAVAILABLE", "/dev/nvidia", "--gpus all"}},
      {"CUDA_ERROR_NOT_PERMITTED", {"UNAVAILABLE", "/dev/nvidia", "rights"}},
      {"CUDA_ERROR_UNKNOWN", {"UNAVAILABLE", "nvidia_uvm"}},
      {"CUDA_ERROR_DEVICE_UNAVAILABLE", {"UNAVAILABLE", "exclusive"}},
      {"CUDA_ERROR_INVALID_HANDLE", {"cuInit"}},
  };
  for (const Case& one : cases) {
    std::vector<std::string> expected = one.expected;
    if (expected.size() == 1) expected.insert(expected.begin(), "FAILED_PRECONDITION");
    EXPECT_EQ(GetFails("KVXFER_STANDIN_INIT", one.error, expected), 0) << one.error;
  }
  EXPECT_EQ(GetFails("KVXFER_STANDIN_DEVICES", "0", {"UNIMPLEMENTED", "NO_DEVICE"}), 0);
}

TEST(CudaDriverLoadTest, AFailureWhileLookingAtTheDevicesNamesTheCall) {
  EXPECT_EQ(GetFails("KVXFER_STANDIN_FAIL", "cuDeviceGetCount:1:CUDA_ERROR_UNKNOWN",
                     {"INTERNAL", "cuDeviceGetCount"}),
            0);
  EXPECT_EQ(GetFails("KVXFER_STANDIN_FAIL", "cuDeviceGetUuid_v2:2:CUDA_ERROR_INVALID_DEVICE",
                     {"INVALID_ARGUMENT", "GPU 1", "cuDeviceGetUuid"}),
            0);
}

// Nobody asks a GPU that is not needed.
KVXFER_CHILD(CudaIfInUse) {
  CHILD_EXPECT(Driver::IfInUse() == nullptr);
  CHILD_EXPECT(cuda_driver::FindHooks() == nullptr);  // and nothing was loaded
  // Somebody loads it, as libcudart does, and does nothing yet.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHILD_EXPECT(library != nullptr);
  CHILD_EXPECT(Driver::IfInUse() == nullptr);
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(library, "cuInit"));
  CHILD_EXPECT(cuda_driver::FindHooks()->kvxfer_standin_calls("cuInit") == 0);
  CHILD_EXPECT(init(0) == CUDA_SUCCESS);
  CHILD_EXPECT(Driver::IfInUse() != nullptr);
  CHILD_EXPECT(Driver::IfInUse() == *Driver::Get());
  cuda_driver::LiveObjects live;
  cuda_driver::FindHooks()->kvxfer_standin_live(&live);
  CHILD_EXPECT(live.contexts == 0);
  return 0;
}

TEST(CudaDriverLoadTest, IfInUseLoadsAndInitialisesNothing) {
  EXPECT_EQ(RunChild("CudaIfInUse", {}, kAmple), 0);
}

KVXFER_CHILD(CudaForked) {
  CHILD_EXPECT(Driver::Get().ok());
  const Driver& driver = **Driver::Get();
  const ContextScope parent(driver, 0);
  CHILD_EXPECT(parent.status().ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto again = Driver::Get();
    const ContextScope scope(driver, 0);
    int here = 0;
    const bool right = again.status().code() == absl::StatusCode::kFailedPrecondition &&
                       absl::StrContains(again.status().message(), "fork") &&
                       Driver::IfInUse() == nullptr &&
                       scope.status().code() == absl::StatusCode::kFailedPrecondition &&
                       driver.Context(1).status().code() == absl::StatusCode::kFailedPrecondition &&
                       CheckHostSpan({.data = &here, .bytes = sizeof(here)}).ok();
    _exit(right ? 0 : 1);
  }
  int status = 0;
  CHILD_EXPECT(waitpid(child, &status, 0) == child);
  CHILD_EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHILD_EXPECT(driver.Context(1).ok());  // the parent goes on
  return 0;
}

TEST(CudaDriverLoadTest, AForkedChildIsToldSoAndTouchesNoLock) {
  EXPECT_EQ(RunChild("CudaForked", {}, kAmple), 0);
}

TEST(CudaDriverTest, DevicesAreDescribed) {
  StandIn();
  const Driver& driver = TheDriver();
  EXPECT_EQ(driver.version(), 13000);
  ASSERT_EQ(driver.devices().size(), 2U);
  std::set<std::string> uuids;
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    const Device& device = *driver.device(ordinal).value();
    EXPECT_EQ(device.ordinal, ordinal);
    EXPECT_FALSE(device.name.empty());
    EXPECT_EQ(device.uuid.size(), 32U);
    EXPECT_EQ(device.uuid.find_first_not_of("0123456789abcdef"), std::string::npos);
    uuids.insert(device.uuid);
    EXPECT_EQ(driver.FindUuid(device.uuid), &device);
    EXPECT_EQ(device.pci.size(), 12U) << device.pci;
    EXPECT_EQ(device.compute, 90);
    EXPECT_GT(device.memory, 0U);
    EXPECT_EQ(device.multiprocessors, 8);
    EXPECT_EQ(device.numa_node, 0);
    EXPECT_FALSE(device.integrated);
    EXPECT_TRUE(device.virtual_memory && device.fd_handles && device.gpu_direct && device.dmabuf &&
                device.stream_values);
    EXPECT_FALSE(device.fabric_handles);
    EXPECT_EQ(device.writes_ordering, 0);
    EXPECT_EQ(device.flush_options, 1);
  }
  EXPECT_EQ(uuids.size(), 2U);
  EXPECT_EQ(driver.FindUuid("0123"), nullptr);
  for (const int none : {-1, 2, 1000}) {
    EXPECT_TRUE(Fails(driver.device(none), absl::StatusCode::kInvalidArgument,
                      {"sees 2", "CUDA_VISIBLE_DEVICES"}));
    EXPECT_TRUE(Fails(driver.Context(none), absl::StatusCode::kInvalidArgument));
    EXPECT_FALSE(ContextScope(driver, none).status().ok());
  }
}

TEST(CudaDriverTest, AScopeLeavesTheCurrentContextAsItWas) {
  StandIn();
  const Driver& driver = TheDriver();
  const auto current = [&] {
    CUcontext context = nullptr;
    EXPECT_EQ(driver.calls().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
  };
  const CUcontext before = current();
  {
    const ContextScope outer(driver, 0);
    ASSERT_OK(outer.status());
    EXPECT_EQ(current(), *driver.Context(0));
    {
      const ContextScope inner(driver, 1);
      ASSERT_OK(inner.status());
      EXPECT_EQ(current(), *driver.Context(1));
      const ContextScope none(driver, 9);
      EXPECT_FALSE(none.status().ok());
      EXPECT_EQ(current(), *driver.Context(1));
    }
    EXPECT_EQ(current(), *driver.Context(0));
  }
  EXPECT_EQ(current(), before);
}

// So one scope around several saves their calls.
TEST(CudaDriverTest, AScopeWithinOneOfTheSameDeviceMakesNoCall) {
  const cuda_driver::Hooks& hooks = StandIn();
  const Driver& driver = TheDriver();
  ASSERT_OK(driver.Context(0));
  using For = ContextScope::For;
  const auto calls = [&](For around, For within) {
    const ContextScope outer(driver, 0, around);
    const uint64_t before = hooks.kvxfer_standin_calls(nullptr);
    { EXPECT_OK(ContextScope(driver, 0, within).status()); }
    return hooks.kvxfer_standin_calls(nullptr) - before;
  };
  EXPECT_EQ(calls(For::kAnything, For::kAnything), 0u);
  EXPECT_EQ(calls(For::kAnything, For::kQueueing), 0u);
  EXPECT_EQ(calls(For::kQueueing, For::kQueueing), 0u);
  // The outer one has left the capture mode alone.
  EXPECT_EQ(calls(For::kQueueing, For::kAnything), 3u);
}

// An application that uses the runtime API, PyTorch for one, has the device's context current.
TEST(CudaDriverTest, AScopeOfTheCurrentContextMakesOneCall) {
  const cuda_driver::Hooks& hooks = StandIn();
  const Driver& driver = TheDriver();
  LeaveContexts();
  ASSERT_OK_AND_ASSIGN(const CUcontext context, driver.Context(0));
  const auto calls = [&] {
    const uint64_t before = hooks.kvxfer_standin_calls(nullptr);
    { EXPECT_OK(ContextScope(driver, 0, ContextScope::For::kQueueing).status()); }
    return hooks.kvxfer_standin_calls(nullptr) - before;
  };
  EXPECT_EQ(calls(), 3u) << "pushed, and popped";
  ASSERT_EQ(driver.calls().cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(calls(), 1u);
  CUcontext still = nullptr;
  EXPECT_EQ(driver.calls().cuCtxPopCurrent_v2(&still), CUDA_SUCCESS);
  EXPECT_EQ(still, context);
}

// Also where nothing is restored at the end of a scope.
TEST(CudaDriverTest, AScopeInAThreadOfOurOwnGivesTheOneAroundItsContextBack) {
  StandIn();
  const Driver& driver = TheDriver();
  std::thread([&] {
    ContextScope::OwnThread();
    const auto current = [&] {
      CUcontext context = nullptr;
      EXPECT_EQ(driver.calls().cuCtxGetCurrent(&context), CUDA_SUCCESS);
      return context;
    };
    const ContextScope outer(driver, 0);
    { EXPECT_OK(ContextScope(driver, 0).status()); }
    {
      const ContextScope inner(driver, 1);
      EXPECT_EQ(current(), *driver.Context(1));
      // Not served by the outer one, although that is of its device.
      const ContextScope innermost(driver, 0);
      EXPECT_EQ(current(), *driver.Context(0));
    }
    EXPECT_EQ(current(), *driver.Context(0));
  }).join();
}

// Retained once, whoever asks and how often.
TEST(CudaDriverTest, ContextsAreRetainedOnce) {
  const cuda_driver::Hooks& hooks = StandIn();
  const Driver& driver = TheDriver();
  ASSERT_OK(driver.Context(0));
  cuda_driver::LiveObjects before;
  hooks.kvxfer_standin_live(&before);
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) EXPECT_OK(driver.Context(0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  cuda_driver::LiveObjects after;
  hooks.kvxfer_standin_live(&after);
  EXPECT_EQ(before.retains, after.retains);
}

KVXFER_CHILD(CudaContextFails) {
  const Driver& driver = TheDriver();
  StandIn().kvxfer_standin_fail("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto failed = driver.Context(1);
  CHILD_EXPECT(failed.status().code() == absl::StatusCode::kResourceExhausted);
  CHILD_EXPECT(absl::StrContains(failed.status().message(), "GPU 1"));
  CHILD_EXPECT(driver.Context(1).ok());  // it is tried again
  return 0;
}

TEST(CudaDriverTest, AContextThatFailsIsTriedAgain) {
  EXPECT_EQ(RunChild("CudaContextFails", {}, kAmple), 0);
}

KVXFER_CHILD(CudaPeers) {
  const Driver& driver = TheDriver();
  CHILD_EXPECT(driver.devices().size() == 3);
  for (int i = 0; i < 2; ++i) {
    CHILD_EXPECT(driver.EnablePeerAccess(0, 1).ok());
    CHILD_EXPECT(driver.EnablePeerAccess(1, 0).ok());
    CHILD_EXPECT(driver.EnablePeerAccess(2, 2).ok());
  }
  CHILD_EXPECT(StandIn().kvxfer_standin_calls("cuCtxEnablePeerAccess") == 2);
  const absl::Status none = driver.EnablePeerAccess(0, 2);
  CHILD_EXPECT(none.code() == absl::StatusCode::kFailedPrecondition);
  for (const char* const word : {"GPU 0", "GPU 2", "nvidia-smi topo"}) {
    CHILD_EXPECT(absl::StrContains(none.message(), word));
  }
  CHILD_EXPECT(driver.EnablePeerAccess(0, 7).code() == absl::StatusCode::kInvalidArgument);
  CHILD_EXPECT(driver.EnablePeerAccess(7, 7).code() == absl::StatusCode::kInvalidArgument);
  return 0;
}

TEST(CudaDriverTest, PeersAreEnabledOnceOrRefused) {
  const ScopedEnvironment three("KVXFER_STANDIN_DEVICES", "3");
  EXPECT_EQ(RunChild("CudaPeers", {}, kAmple), 0);
}

KVXFER_CHILD(CudaPeersOfOthers) {
  const Driver& driver = TheDriver();
  {
    const ContextScope scope(driver, 0);
    CHILD_EXPECT(driver.calls().cuCtxEnablePeerAccess(*driver.Context(1), 0) == CUDA_SUCCESS);
  }
  CHILD_EXPECT(driver.EnablePeerAccess(0, 1).ok());
  return 0;
}

TEST(CudaDriverTest, PeersThatTheApplicationEnabledAreFine) {
  EXPECT_EQ(RunChild("CudaPeersOfOthers", {}, kAmple), 0);
}

TEST(CudaDriverTest, ErrorsSayCodeNameAndRemedy) {
  StandIn();
  const Driver& driver = TheDriver();
  EXPECT_OK(driver.Error(CUDA_SUCCESS, "cuMemAlloc"));
  using absl::StatusCode;
  struct Case {
    CUresult result;
    const char* call;
    StatusCode code;
    std::initializer_list<const char*> words;
  };
  const Case cases[] = {
      {CUDA_ERROR_OUT_OF_MEMORY,
       "cuMemAlloc",
       StatusCode::kResourceExhausted,
       {"cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2", "nvidia-smi"}},
      {CUDA_ERROR_OUT_OF_MEMORY,
       "cuMemHostRegister",
       StatusCode::kResourceExhausted,
       {"RLIMIT_MEMLOCK", "container"}},
      {CUDA_ERROR_MAP_FAILED,
       "cuMemGetHandleForAddressRange",
       StatusCode::kResourceExhausted,
       {"BAR1", "resizable"}},
      {CUDA_ERROR_ALREADY_MAPPED,
       "cuIpcOpenMemHandle",
       StatusCode::kFailedPrecondition,
       {"cuIpcOpenMemHandle: CUDA_ERROR_ALREADY_MAPPED (208", "opened before"}},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
       "cuEventRecord",
       StatusCode::kInvalidArgument,
       {"906", "legacy default stream", "outside of the capture"}},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "a copy", StatusCode::kInternal, {"broken", "restart"}},
      {CUDA_ERROR_LAUNCH_FAILED, "a copy", StatusCode::kInternal, {"broken", "restart"}},
      {CUDA_ERROR_NOT_PERMITTED, "cuMemHostRegister", StatusCode::kPermissionDenied, {"800"}},
      {CUDA_ERROR_NOT_SUPPORTED, "cuMemExport", StatusCode::kUnimplemented, {"801"}},
      {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
       "cuCtxEnablePeerAccess",
       StatusCode::kFailedPrecondition,
       {"peer-to-peer", "topo"}},
      {CUDA_ERROR_INVALID_CONTEXT,
       "cuIpcOpenMemHandle",
       StatusCode::kFailedPrecondition,
       {"this process itself"}},
      {CUDA_ERROR_OPERATING_SYSTEM, "cuIpcOpenMemHandle", StatusCode::kUnavailable, {"--ipc=host"}},
      {CUDA_ERROR_OPERATING_SYSTEM, "cuInit", StatusCode::kUnavailable, {"/dev/nvidia"}},
      {static_cast<CUresult>(12345),
       "cuAnything",
       StatusCode::kInternal,
       {"cuAnything: CUDA error (12345"}},
  };
  for (const Case& one : cases) {
    EXPECT_TRUE(Fails(driver.Error(one.result, one.call), one.code, one.words));
  }
}

}  // namespace
}  // namespace kvxfer::cuda
