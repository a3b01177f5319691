#include "tests/support/flavour.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_join.h"
#include "src/backends/registry.h"
#include "src/cuda/driver.h"
#include "tests/support/scale.h"
#include "tests/support/test_backends.h"

namespace kvxfer::testing {
namespace {

std::vector<Flavour> BetweenProcesses(std::vector<Flavour> all) {
  std::erase_if(all, [](const Flavour& flavour) { return !flavour.between_processes(); });
  return all;
}

}  // namespace

bool Flavour::between_processes() const {
  return inner() != "loopback" && (inner() != "verbs" || RealVerbs());
}

bool Flavour::staged() const {
  return memory == MemoryType::kCuda && inner() != "cuda_ipc" && inner() != "verbs" &&
         inner() != "libfabric";
}

uint64_t Flavour::max_case_bytes() const {
  if (kEmulated) return uint64_t{8} << 20;
  return uint64_t{kSanitized || faulty() ? 64u : 256u} << 20;
}

std::vector<Flavour> PlainFlavours() {
  std::vector<Flavour> all = {
      {.name = "Loopback", .backend = "loopback", .memory = MemoryType::kAttached, .faults = {}},
      {.name = "Tcp", .backend = "tcp", .memory = MemoryType::kAttached, .faults = {}},
      {.name = "ShmMapped", .backend = "shm", .memory = MemoryType::kMapped, .faults = {}},
      {.name = "ShmAttached", .backend = "shm", .memory = MemoryType::kAttached, .faults = {}},
      CudaIpcFlavour(),
      {.name = RealVerbs() ? "Verbs" : "VerbsTestDevice",
       .backend = "verbs",
       .memory = MemoryType::kAttached,
       .faults = {}},
  };
  if (!RealVerbs()) {
    all.push_back(VerbsCudaFlavour());
    all.push_back(VerbsStreamFlavour());
  }
  std::ranges::move(LibfabricFlavours(), std::back_inserter(all));
  if (!HasUcx()) return all;
  all.push_back(UcxFlavour("UcxTcp", "tcp,self"));
  all.push_back(UcxFlavour("UcxPosix", "posix,self"));
  return all;
}

std::vector<Flavour> RinglessFlavours() {
  std::vector<Flavour> all = {CudaIpcFlavour(), PlainFlavour("ShmMapped")};
  for (Flavour& flavour : all) {
    flavour.name += "Ringless";
    flavour.control = ControlCarrier::kTcp;
  }
  return all;
}

Flavour CudaIpcFlavour() {
  return {.name = "CudaIpc", .backend = "cuda_ipc", .memory = MemoryType::kCuda, .faults = {}};
}

Flavour VerbsCudaFlavour() {
  return {
      .name = "VerbsTestDeviceCuda", .backend = "verbs", .memory = MemoryType::kCuda, .faults = {}};
}

Flavour VerbsStreamFlavour() {
  Flavour flavour{.name = "VerbsTestDeviceStream",
                  .backend = "verbs",
                  .memory = MemoryType::kAttached,
                  .faults = {}};
  flavour.control = ControlCarrier::kTcp;
  return flavour;
}

std::vector<Flavour> LibfabricFlavours() {
  const char* const provider = std::getenv("KVXFER_FABRIC_PROVIDER");
  if (provider == nullptr) return {};
  const char* const domains = std::getenv("KVXFER_FABRIC_DOMAINS");
  Flavour flavour;
  flavour.name = "Libfabric";
  flavour.backend = "libfabric";
  flavour.memory = MemoryType::kAttached;
  const char* const memory = std::getenv("KVXFER_FABRIC_MEMORY");
  if (memory != nullptr && std::string_view(memory) == "cuda") {
    flavour.memory = MemoryType::kCuda;
    // A backend asks for GPU memory where the process uses CUDA already.
    static const bool in_use = cuda::Driver::Get().ok();
    if (!in_use) return {};
  }
  flavour.provider = provider;
  std::istringstream names(domains == nullptr ? "" : domains);
  for (std::string name; std::getline(names, name, ',');) flavour.domains.push_back(name);
  return {flavour};
}

bool HasUcx() {
  return std::ranges::any_of(ListBackends({}), [](const BackendOrigin& origin) {
    return origin.name == "ucx" && (origin.built_in || !origin.file.empty());
  });
}

Flavour UcxFlavour(std::string name, std::string tls) {
  Flavour flavour;
  flavour.name = std::move(name);
  flavour.backend = "ucx";
  flavour.memory = MemoryType::kAttached;
  flavour.ucx_tls = std::move(tls);
  return flavour;
}

Flavour UcxSocketFlavour() {
  Flavour flavour =
      RealVerbs() ? UcxFlavour("UcxRdma", "rc_v,self") : UcxFlavour("UcxSocket", "tcp,self");
  // Where tests/support/rdma-vm has its first device.
  flavour.ucx_listen = RealVerbs() ? "10.77.0.1" : "127.0.0.1";
  return flavour;
}

Flavour PlainFlavour(std::string_view name) {
  for (Flavour& flavour : PlainFlavours()) {
    if (flavour.name == name) return std::move(flavour);
  }
  ADD_FAILURE() << "no plain flavour is called " << name;
  return {};
}

Flavour TcpFlavour() { return PlainFlavour("Tcp"); }

Flavour TcpAddressesFlavour() {
  Flavour flavour = TcpFlavour();
  flavour.name = "TcpAddresses";
  flavour.tcp_addresses = {"127.0.0.1", "127.0.0.2"};
  flavour.rails = 3;
  return flavour;
}

std::vector<Flavour> StagedFlavours() {
  return {
      {.name = "TcpStaged", .backend = "tcp", .memory = MemoryType::kCuda, .faults = {}},
      {.name = "ShmStaged", .backend = "shm", .memory = MemoryType::kCuda, .faults = {}},
  };
}

std::vector<Flavour> CarrierFlavours() {
  Flavour shm = PlainFlavour("ShmAttached");
  shm.name = "ShmByTcp";
  shm.control = ControlCarrier::kTcp;
  shm.carrier = "tcp";
  return {shm};
}

std::vector<Flavour> FaultyFlavours(int seeds) {
  std::vector<Flavour> all;
  // Another seed takes the code no other ways, and that is what a sanitizer looks at.
  if (kSanitized || kQuick) seeds = 1;
  for (int i = 0; i < seeds; ++i) {
    const uint64_t seed = TestSeed() + static_cast<uint64_t>(i);
    for (Flavour flavour : PlainFlavours()) {
      if (kQuick && flavour.backend != "tcp" && flavour.backend != "loopback") continue;
      // What is made worse is the same over either kind of memory.
      if (flavour.name == VerbsCudaFlavour().name) continue;
      if (flavour.name == VerbsStreamFlavour().name) continue;
      // Two transports of UCX and two kinds of shm memory: a second seed shows nothing more.
      if (i > 0 && (flavour.backend == "ucx" || flavour.backend == "shm")) continue;
      flavour.name = "Faulty" + flavour.name + "Seed" + std::to_string(seed);
      if (i > 0) flavour.name += "Soak";  // nightly
      flavour.backend = "faulty:" + flavour.backend;
      flavour.faults = {.seed = seed,
                        .reorder_window = 8,
                        .max_delay = std::chrono::microseconds(300),
                        .overtake = true};
      all.push_back(std::move(flavour));
    }
  }
  return all;
}

std::vector<Flavour> RailFlavours(double down_probability, Duration down_for) {
  std::vector<Flavour> all;
  const auto add = [&](std::string name, Flavour flavour, uint32_t rails, bool reorders) {
    flavour.name = std::move(name);
    flavour.backend = "faulty:" + flavour.backend;
    flavour.rails = rails;
    flavour.faults = {
        .seed = TestSeed(), .rail_down_probability = down_probability, .rail_down_for = down_for};
    if (reorders) {
      flavour.faults.reorder_window = 8;
      flavour.faults.max_delay = std::chrono::microseconds(300);
      flavour.faults.overtake = true;
    }
    all.push_back(std::move(flavour));
  };
  const Flavour loopback = PlainFlavour("Loopback");
  add("LoopbackTwo", loopback, 2, false);
  add("LoopbackFour", loopback, 4, false);
  add("LoopbackFourReordered", loopback, 4, true);
  add("TcpFour", TcpFlavour(), 4, false);
  add("TcpTwoReordered", TcpFlavour(), 2, true);
  add("ShmOne", PlainFlavour("ShmMapped"), 1, false);
  return all;
}

std::vector<Flavour> AllFlavours() {
  std::vector<Flavour> all = PlainFlavours();
  std::ranges::move(FaultyFlavours(), std::back_inserter(all));
  all.push_back(TcpAddressesFlavour());
  if (HasUcx()) all.push_back(UcxSocketFlavour());
  std::ranges::move(StagedFlavours(), std::back_inserter(all));
  std::ranges::move(CarrierFlavours(), std::back_inserter(all));
  Flavour faulty = TcpFlavour();
  faulty.memory = MemoryType::kCuda;
  faulty.name = "FaultyTcpStaged";
  faulty.backend = "faulty:tcp";
  faulty.faults = {.seed = TestSeed(),
                   .reorder_window = 8,
                   .max_delay = std::chrono::microseconds(300),
                   .overtake = true};
  all.push_back(faulty);
  // Who has the threads of another one shows ThreadSanitizer nothing new; shm has threads of its
  // own for attached memory alone.
  if (kThreadSanitizer) {
    std::erase_if(all, [](const Flavour& one) {
      return one.name == "ShmMapped" || one.name == "UcxPosix" || one.name == "UcxSocket" ||
             one.name == "TcpAddresses" ||
             (one.faulty() && one.inner() != "tcp" && one.inner() != "libfabric");
    });
  }
  return all;
}

std::vector<Flavour> ProcessFlavours() { return BetweenProcesses(AllFlavours()); }

std::vector<Flavour> PlainProcessFlavours() {
  std::vector<Flavour> all = PlainFlavours();
  if (HasUcx()) all.push_back(UcxSocketFlavour());
  std::ranges::move(StagedFlavours(), std::back_inserter(all));
  std::ranges::move(CarrierFlavours(), std::back_inserter(all));
  return BetweenProcesses(std::move(all));
}

AgentOptions OptionsFor(const Flavour& flavour, std::string_view name) {
  AgentOptions options;
  options.name = name;
  options.backends = {flavour.backend};
  options.control = flavour.control;
  if (!flavour.carrier.empty()) options.backends.push_back(flavour.carrier);
  options.plugin_path = flavour.plugin_path;
  if (flavour.faulty()) options.backend["faulty"] = WriteOptions(flavour.faults);
  BackendOptions& section = options.backend[flavour.inner()];
  const std::string rails = std::to_string(flavour.rails);
  if (flavour.inner() == "tcp") {
    section = {{"streams", rails}, {"addresses", absl::StrJoin(flavour.tcp_addresses, ",")}};
    if (kDataThreads != nullptr) section["data_threads"] = kDataThreads;
  } else if (flavour.inner() == "loopback") {
    section = {{"rails", rails}};
  } else if (flavour.inner() == "shm") {
    // Also where there are few CPUs: whether it is right does not hang on how many there are.
    section = {{"copy_threads", "2"}};
  } else if (flavour.inner() == "ucx") {
    section = {{"tls", flavour.ucx_tls}, {"listen", flavour.ucx_listen}};
  } else if (flavour.inner() == "libfabric") {
    section = {{"provider", flavour.provider}, {"domains", absl::StrJoin(flavour.domains, ",")}};
  }
  // An emulated device answers late, and a handshake that loses two of its packets takes seconds
  // where the network loses some on purpose.
  if (kEmulated) {
    if (flavour.inner() == "verbs") section["timeout"] = "18";
    options.connect_timeout = std::chrono::seconds(20);
  }
  return options;
}

}  // namespace kvxfer::testing
