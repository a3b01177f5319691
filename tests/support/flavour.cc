#include "tests/support/flavour.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

std::vector<Flavour> BetweenProcesses(std::vector<Flavour> all) {
  std::erase_if(all, [](const Flavour& flavour) { return !flavour.between_processes(); });
  return all;
}

}  // namespace

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("KVXFER_TEST_SEED");
    return text == nullptr ? uint64_t{1} : std::strtoull(text, nullptr, 10);
  }();
  return seed;
}

uint64_t Flavour::max_case_bytes() const {
  if (kEmulated) return uint64_t{8} << 20;
  return uint64_t{kSanitized || faulty() ? 64u : 256u} << 20;
}

std::vector<Flavour> PlainFlavours() {
  return {
      {.name = "Loopback", .backend = "loopback", .memory = MemoryType::kAttached, .faults = {}},
      {.name = "Tcp", .backend = "tcp", .memory = MemoryType::kAttached, .faults = {}},
      {.name = "ShmMapped", .backend = "shm", .memory = MemoryType::kMapped, .faults = {}},
      {.name = "ShmAttached", .backend = "shm", .memory = MemoryType::kAttached, .faults = {}},
  };
}

Flavour TcpFlavour() { return PlainFlavours()[1]; }

std::vector<Flavour> FaultyFlavours(int seeds) {
  std::vector<Flavour> all;
  for (int i = 0; i < seeds; ++i) {
    const uint64_t seed = TestSeed() + static_cast<uint64_t>(i);
    for (Flavour flavour : PlainFlavours()) {
      // The first seed takes one kind of shm memory, the second the other.
      if (seeds > 1 && flavour.backend == "shm" &&
          (flavour.memory == MemoryType::kMapped) != (i % 2 == 0)) {
        continue;
      }
      flavour.name = "Faulty" + flavour.name + "Seed" + std::to_string(seed);
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

std::vector<Flavour> AllFlavours() {
  std::vector<Flavour> all = PlainFlavours();
  std::ranges::move(FaultyFlavours(), std::back_inserter(all));
  return all;
}

std::vector<Flavour> ProcessFlavours() { return BetweenProcesses(AllFlavours()); }
std::vector<Flavour> PlainProcessFlavours() { return BetweenProcesses(PlainFlavours()); }

AgentOptions OptionsFor(const Flavour& flavour, std::string_view name) {
  AgentOptions options;
  options.name = name;
  options.backends = {flavour.backend};
  options.faults = flavour.faults;
  return options;
}

}  // namespace kvxfer::testing
