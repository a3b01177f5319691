// What the raw programs share. Nothing here or in them comes from kvxfer, which they judge.
#ifndef KVXFER_BENCHMARKS_RAW_RAW_H_
#define KVXFER_BENCHMARKS_RAW_RAW_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace raw {

struct Options {
  std::vector<uint64_t> block_sizes{4096, 16384, 65536, 262144, 1048576, 4194304};
  uint64_t total = uint64_t{256} << 20;  // bytes of one round
  uint64_t rounds = 10;
  std::string mode{};          // empty: every mode of the program
  std::string pages = "huge";  // or small: of memory that both sides map
  uint64_t connections = 2;
  uint64_t size = 64;      // of a ping
  uint64_t count = 10000;  // pings
  bool json = false;
};

[[noreturn]] inline void Die(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

inline std::vector<uint64_t> ParseList(const std::string& text) {
  std::vector<uint64_t> values;
  for (const char* at = text.c_str(); *at != 0;) {
    char* end = nullptr;
    const uint64_t value = std::strtoull(at, &end, 10);
    if (end == at || value == 0 || (*end != 0 && *end != ',')) {
      std::fprintf(stderr, "'%s' is no list of whole numbers above zero\n", text.c_str());
      std::exit(2);
    }
    values.push_back(value);
    at = *end == ',' ? end + 1 : end;
  }
  return values;
}

// --name value pairs, all numbers plain; --json alone. Ends the program on anything else.
inline Options ParseOptions(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      o.json = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    const std::vector<std::pair<const char*, uint64_t*>> numbers = {
        {"--total", &o.total},
        {"--rounds", &o.rounds},
        {"--connections", &o.connections},
        {"--size", &o.size},
        {"--count", &o.count}};
    const auto number = std::find_if(numbers.begin(), numbers.end(),
                                     [&](const auto& n) { return name == n.first; });
    if (value.empty()) {
      std::fprintf(stderr, "%s needs a value\n", name.c_str());
      std::exit(2);
    } else if (name == "--block-sizes") {
      o.block_sizes = ParseList(value);
    } else if (name == "--mode") {
      o.mode = value;
    } else if (name == "--pages" && (value == "huge" || value == "small")) {
      o.pages = value;
    } else if (number != numbers.end()) {
      *number->second = ParseList(value).front();
    } else {
      std::fprintf(stderr, "unknown option %s\n", name.c_str());
      std::exit(2);
    }
  }
  if (o.total < *std::max_element(o.block_sizes.begin(), o.block_sizes.end())) {
    std::fprintf(stderr, "--total holds no block of the largest size\n");
    std::exit(2);
  }
  return o;
}

// The scatter of `kvxfer bench`: each side has its blocks in a random order of its own.
inline std::vector<uint32_t> Permutation(uint64_t count, uint64_t seed) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0u);
  std::mt19937_64 random(seed);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random() % i]);
  return ids;
}
inline constexpr uint64_t kSourceSeed = 2;
inline constexpr uint64_t kTargetSeed = 3;

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
inline constexpr size_t kHugePage = size_t{2} << 20;

// Shared between processes that are forked later; every page present. For huge ones addresses and
// file must be aligned alike, and each needs a first small page to be made from (MADV_COLLAPSE).
inline std::span<std::byte> SharedMemory(uint64_t bytes, int value, const Options& options) {
  void* room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int fd = memfd_create("raw", MFD_CLOEXEC);
  if (room == MAP_FAILED || fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) Die("memfd");
  const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(room) % kHugePage) % kHugePage;
  void* data = mmap(static_cast<std::byte*>(room) + skip, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) Die("mmap");
  close(fd);
  auto* begin = static_cast<std::byte*>(data);
  const bool huge = options.pages == "huge";
  for (size_t at = 0; huge && at + kHugePage <= bytes; at += kHugePage) {
    begin[at] = std::byte{0};
    if (madvise(begin + at, kHugePage, MADV_COLLAPSE) == 0) continue;
    std::fprintf(stderr, "no huge pages (%s): small ones are taken\n", std::strerror(errno));
    break;
  }
  std::memset(begin, value, bytes);
  return {begin, bytes};
}

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Prints one result: bytes of a round over the mean of the rounds' seconds, as `kvxfer bench`.
class Report {
 public:
  explicit Report(bool json) : json_(json) {
    std::puts(json_ ? "{\"rows\": [" : "          mode    #bytes   blocks     GB/s   p50 us");
  }
  ~Report() {
    if (json_) std::puts("]}");
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void Add(const std::string& mode, uint64_t block_bytes, uint64_t blocks,
           std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    const double bytes = static_cast<double>(block_bytes * blocks * seconds.size());
    const double rate = bytes * 1e-9 / sum;
    const double p50 = seconds[(seconds.size() - 1) / 2] * 1e6;
    if (json_) {
      std::printf(
          "%s{\"mode\": \"%s\", \"block_bytes\": %lu, \"blocks\": %lu, "
          "\"gb_per_s\": %.4f, \"p50_us\": %.2f}\n",
          first_ ? "" : ",", mode.c_str(), block_bytes, blocks, rate, p50);
    } else {
      std::printf("%14s %9lu %8lu %8.2f %8.1f\n", mode.c_str(), block_bytes, blocks, rate, p50);
    }
    std::fflush(stdout);
    first_ = false;
  }

 private:
  const bool json_;
  bool first_ = true;
};

}  // namespace raw

#endif  // KVXFER_BENCHMARKS_RAW_RAW_H_
