// The GPU checks of `kvxfer doctor`, over possible reports of a driver; and that a driver that
// hangs blocks no check.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/doctor/doctor.h"
#include "src/cli/topo/topology_fixture.h"
#include "tests/unit/cli/doctor/host.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Views in which the driver reports no GPUs.
void NoDriver(Host& host) {
  host.cuda = {.asked = true, .status = absl::UnimplementedError("no libcuda.so.1")};
}

void Hangs(Host& host) {
  host.cuda = {.asked = true,
               .status = absl::DeadlineExceededError("the CUDA driver does not answer")};
}

void NotAsked(Host& host) { host.cuda = {}; }

void WithoutDmabuf(Host& host) {
  for (cuda::Device& device : host.cuda.devices) device.dmabuf = false;
}

std::vector<Case> DriverCases() {
  return {
      {"cuda-driver", Severity::kWarning, &WellHost, &NoDriver, "--gpus all"},
      {"cuda-driver", Severity::kProblem, &WellHost,
       [](Host& h) {
         NoDriver(h);
         h.file("/dev/nvidiactl") = "";
       },
       "apt install libcuda1"},
      {"cuda-driver", Severity::kProblem, &WellHost,
       [](Host& h) {
         NoDriver(h);
         h.file("/dev/nvidiactl") = "";
         h.cuda.library = "/usr/lib64/libcuda.so.1";
       },
       "CUDA_VISIBLE_DEVICES"},
      {"cuda-driver", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.cuda = {.asked = true, .status = absl::UnavailableError("the driver is too old")};
       },
       "the driver is too old"},
      {"cuda-driver", Severity::kProblem, &BareHost, &Hangs, "forever"},
      {"gpus", Severity::kWarning, &WellHost, [](Host& h) { h.cuda.devices[1].compute = 75; },
       "cuda:1 NVIDIA H100 80GB HBM3 has compute capability 7.5"},
      {"gpu-pinned", Severity::kWarning, &WellHost,
       [](Host& h) { h.cuda.pinned = absl::ResourceExhaustedError("RLIMIT_MEMLOCK"); },
       "16 MiB cannot be pinned: RLIMIT_MEMLOCK"},
  };
}

std::vector<Case> ShareCases() {
  return {
      {"gpu-peers", Severity::kWarning, &WellHost,
       [](Host& h) {
         for (GpuLink& link : h.cuda.links) link.access = false;
       },
       "no peer access: cuda:0>1 cuda:1>0"},
      {"gpu-peers", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.cuda.devices[0].name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
         h.cuda.links[1].access = false;
       },
       "MIG instances cannot reach each other"},
      {"gpu-ipc", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.file("/.dockerenv") = "";
         h.file("/proc/1/comm") = "python3";
       },
       "--network=container:NAME --pid=container:NAME --ipc=container:NAME"},
  };
}

std::vector<Case> DirectCases() {
  return {
      {"gpu-direct", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.Without("/sys/module/nvidia_peermem/version");
         WithoutDmabuf(h);
       },
       "modprobe nvidia-peermem"},
      {"gpu-direct", Severity::kProblem, &EfaHost,
       [](Host& h) {
         h.Without("/sys/module/efa_nv_peermem/version");
         WithoutDmabuf(h);
       },
       "modprobe efa-nv-peermem"},
      {"gpu-direct", Severity::kProblem, &WellHost,
       [](Host& h) { h.Without("/sys/module/nvidia/version"); }, "driver is not loaded"},
      {"gpu-direct", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.Without("/sys/module/nvidia_peermem/version");
         h.file("/proc/sys/kernel/osrelease") = "5.4.0-150-generic";
       },
       "(Linux is older than 5.12)"},
      {"gpu-direct", Severity::kProblem, &WellHost,
       [](Host& h) {
         const std::string lib = kLibraries;
         h.Without("/sys/module/nvidia_peermem/version");
         h.file(lib + "libibverbs.so.1.8.28.0") = "";
         h.links[0] = lib + "libibverbs.so.1=" + lib + "libibverbs.so.1.8.28.0";
       },
       "libibverbs 1.8 has no ibv_reg_dmabuf_mr"},
      // The driver was not asked; its kernel modules are known.
      {"gpu-direct", Severity::kProblem, &WellHost,
       [](Host& h) {
         NotAsked(h);
         h.Without("/sys/module/nvidia_peermem/version");
       },
       "does not use the open kernel modules"},
      {"gpu-direct", Severity::kWarning, &WellHost,
       [](Host& h) { h.cuda.devices[1].gpu_direct = false; },
       "cuda:1: the driver does not support GPUDirect"},
      {"gpu-bar1", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.gpu(1)["resource"] = "0xc0000000 0xc0ffffff 0x0\n0x10000000 0x1fffffff 0x0";
       },
       "cuda:1: BAR1 covers 256 MiB of 80 GiB"},
      {"gpu-bar1", Severity::kWarning, &WellHost,
       [](Host& h) {
         NotAsked(h);
         h.gpu(0)["resource"] = "0xc0000000 0xc0ffffff 0x0\n0x10000000 0x1fffffff 0x0";
       },
       "GPU 0: BAR1 covers 256 MiB"},
      {"gpu-ordering", Severity::kWarning, &WellHost,
       [](Host& h) { h.cuda.devices[0].flush_options = 2; },
       "cuda:0: neither orders writes of NICs nor can flush them"},
      {"gpu-nics", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.description["nodes"].push_back({{"cpus", "8-15"}});
         h.gpu(1)["numa"] = 1;
       },
       "cuda:1 mlx5_0 (far): no NIC is near"},
  };
}

// The findings of a check on a changed host.
Finding FindingOf(const std::string& check, Host host, void (*change)(Host&)) {
  change(host);
  const auto view = ViewOf(host);
  if (view == nullptr) return {};
  const std::vector<CheckResult> results = RunChecks(*view);
  return ResultOf(results, check).findings.front();
}

struct Said {
  const char* check;
  void (*change)(Host&);
  const char* what;
};

TEST(DoctorGpu, SaysWhatIsThere) {
  const std::vector<Said> cases = {
      {"cuda-driver", [](Host&) {}, "CUDA 13.0, driver 550.54, /usr/lib64/libcuda.so.580.65.06"},
      {"gpus", [](Host&) {},
       "cuda:0 NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0, 0000:3b:00.0, "
       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
      {"gpus", [](Host& h) { h.cuda.devices[0].name = "NVIDIA A100 MIG 1g.5gb"; },
       "a MIG instance"},
      {"gpu-peers", [](Host&) {}, "all 2 pairs: all atomics, as over NVLink, rank 0"},
      {"gpu-peers", [](Host& h) { h.cuda.links[0].atomics = false; }, "cuda:0>1: as over PCIe"},
      {"gpu-ipc", [](Host& h) { h.cuda.devices[1].fd_handles = false; },
       "no descriptors of cuMemCreate on cuda:1"},
      {"gpus", [](Host& h) { h.cuda.devices[0].mps = true; },
       "MPS: workers that share it run side"},
      {"gpus", [](Host& h) { h.cuda.devices[0].mps = false; },
       "no MPS: workers that share it take"},
      {"gpu-direct", [](Host&) {}, "nvidia_peermem and dma-buf"},
      {"gpu-direct", [](Host& h) { h.file("/sys/module/gdrdrv/version") = "2.4"; },
       "gdrdrv is loaded too"},
      {"gpu-bar1", [](Host&) {}, "cuda:0 128 GiB of 80 GiB cuda:1 128 GiB of 80 GiB"},
      {"gpu-bar1", &NotAsked, "GPU 0 128 GiB GPU 1 128 GiB"},
      // With a first window of 32 bits, as before Hopper.
      {"gpu-bar1",
       [](Host& h) {
         h.cuda.devices[1].memory = size_t{40} << 30;
         h.gpu(1)["resource"] =
             "0x00000000b1000000 0x00000000b1ffffff 0x0000000000040200\n"
             "0x0000013000000000 0x0000013fffffffff 0x000000000014220c\n"
             "0x0000000000000000 0x0000000000000000 0x0000000000000000";
       },
       "cuda:1 64 GiB of 40 GiB"},
      // Two instances of one GPU share its window.
      {"gpu-bar1",
       [](Host& h) {
         h.cuda.devices[1].pci = h.cuda.devices[0].pci;
         for (cuda::Device& device : h.cuda.devices) device.memory = size_t{40} << 30;
       },
       "cuda:0 128 GiB of 80 GiB"},
      {"gpu-ordering", [](Host& h) { h.cuda.devices[0].writes_ordering = 100; },
       "cuda:0: the GPU orders writes of NICs; cuda:1: flushed before each notification"},
      {"gpu-nics", [](Host&) {}, "cuda:0 mlx5_0 (node)"},
      {"gpu-nics", &NotAsked, "GPU 0 mlx5_0 (node)"},
  };
  for (const Said& c : cases) {
    const Finding finding = FindingOf(c.check, WellHost(), c.change);
    EXPECT_EQ(finding.severity, Severity::kOk) << c.check << ": " << finding.what;
    EXPECT_THAT(finding.what, HasSubstr(c.what));
  }
}

TEST(DoctorGpu, EveryGpuIsALine) {
  Host host = WellHost();
  for (int i = 2; i < 8; ++i) {
    host.cuda.devices.push_back(host.cuda.devices[0]);
    host.cuda.devices.back().ordinal = i;
  }
  const auto well = ViewOf(host);
  ASSERT_NE(well, nullptr);
  const std::string text = DoctorText(RunChecks(*well));
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(text, HasSubstr("ok       cuda:" + std::to_string(i) + " NVIDIA H100"));
  }
  EXPECT_THAT(text, Not(HasSubstr("more)")));
  // Also beside a GPU with a problem.
  host.cuda.devices[3].compute = 75;
  const auto old = ViewOf(host);
  ASSERT_NE(old, nullptr);
  EXPECT_THAT(DoctorText(RunChecks(*old)),
              AllOf(HasSubstr("WARNING  cuda:3 NVIDIA H100"), HasSubstr("ok       cuda:0 NVIDIA"),
                    HasSubstr("ok       cuda:7 NVIDIA"), Not(HasSubstr("ok       cuda:3"))));
}

TEST(DoctorGpu, AnOlderDriverDoesNotTellOfMps) {
  const Finding finding = FindingOf("gpus", WellHost(), [](Host&) {});
  EXPECT_THAT(finding.what, Not(HasSubstr("MPS")));
}

// On a host without GPUs the GPU checks print one line.
TEST(DoctorGpu, OneQuietLineWithoutADriver) {
  const auto view = ViewOf(BareHost());
  ASSERT_NE(view, nullptr);
  const std::vector<CheckResult> results = RunChecks(*view);
  for (const CheckResult& result : results) {
    if (result.family != "gpus") continue;
    EXPECT_EQ(result.severity, Severity::kNotApplicable) << result.check->name;
  }
  const std::string text = DoctorText(results);
  EXPECT_THAT(text, HasSubstr("cuda-driver  n/a  no CUDA driver: GPU memory is not used here\n"));
  EXPECT_THAT(text, Not(HasSubstr("PROBLEM")));
  EXPECT_THAT(text, AllOf(HasSubstr("not applicable: "), HasSubstr(" gpu-peers gpu-ipc ")));
}

TEST(DoctorGpu, ADriverThatHangsHoldsNobodyUp) {
  std::promise<void> never;
  const CudaState hangs =
      AskWithin(std::chrono::milliseconds(5), [wait = never.get_future().share()] {
        wait.wait();
        return CudaState{};
      });
  EXPECT_TRUE(hangs.asked);
  EXPECT_TRUE(absl::IsDeadlineExceeded(hangs.status)) << hangs.status;
  never.set_value();
  const CudaState answers =
      AskWithin(std::chrono::minutes(1), [] { return CudaState{.asked = true, .version = 12040}; });
  EXPECT_EQ(answers.version, 12040);
}

// The view is a copy of another host's files.
TEST(DoctorGpu, TreesTellWhatFilesTell) {
  Host host = WellHost();
  NotAsked(host);
  const auto view = ViewOf(host);
  ASSERT_NE(view, nullptr);
  const std::vector<CheckResult> results = RunChecks(*view);
  for (const char* check : {"cuda-driver", "gpus", "gpu-peers", "gpu-ipc", "gpu-ordering"}) {
    EXPECT_EQ(ResultOf(results, check).severity, Severity::kNotApplicable) << check;
  }
  for (const char* check : {"gpu-direct", "gpu-bar1", "gpu-nics"}) {
    EXPECT_EQ(ResultOf(results, check).severity, Severity::kOk) << check;
  }
}

TEST(DoctorGpu, SavedTopologiesTellTheWindowsOfTheirH100s) {
  for (const BuiltinTopology& saved : BuiltinTopologies()) {
    if (saved.json.find("0x2330") == std::string_view::npos) continue;
    const auto view = ViewOf({.description = Json::parse(saved.json)});
    ASSERT_NE(view, nullptr);
    const std::vector<CheckResult> results = RunChecks(*view);
    EXPECT_THAT(ResultOf(results, "gpu-bar1").findings.front().what, HasSubstr("GPU 0 128 GiB"))
        << saved.name;
  }
}

TEST(DoctorGpu, WindowsWithoutASizeAreNotTold) {
  for (const char* text : {"", "0x0 0x0 0x0", "0x0 0x0 0x0\n0x0 0x0 0x0", "x\ny z", "0x1 0x2\n5"}) {
    Host host = WellHost();
    host.gpu(0)["resource"] = text;
    host.gpu(1)["resource"] = text;
    const auto view = ViewOf(host);
    ASSERT_NE(view, nullptr);
    const std::vector<CheckResult> results = RunChecks(*view);
    EXPECT_EQ(ResultOf(results, "gpu-bar1").severity, Severity::kNotApplicable) << text;
  }
}

}  // namespace

std::vector<Case> GpuCases() {
  std::vector<Case> cases;
  for (auto list : {DriverCases(), ShareCases(), DirectCases()}) {
    for (Case& c : list) cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace kvxfer::cli
