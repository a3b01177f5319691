// What this host's memory gives between two processes: the raw reference for contestants on one
// host.
//
//   copy      memcpy into a shared mapping, block by block
//   stream    the same with non-temporal stores
//   attached  process_vm_writev of up to 1,024 blocks at once into the other's memory
//
// --threads N splits the blocks evenly. The sides tell each other through one shared page: by
// futex, or spinning with --spin. Both know the order of blocks; nothing is checked.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "benchmarks/compare/drivers/driver.h"
#include "benchmarks/compare/drivers/memory.h"

namespace compare {
namespace {

constexpr size_t kMaxRuns = 1024;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void Stream512(std::byte* to, const std::byte* from, size_t n) {
  for (size_t i = 0; i < n; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
}
__attribute__((target("avx2"))) void Stream256(std::byte* to, const std::byte* from, size_t n) {
  for (size_t i = 0; i < n; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
}
void Stream128(std::byte* to, const std::byte* from, size_t n) {
  for (size_t i = 0; i < n; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}
#endif

// `to` and `bytes` are multiples of 64.
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  static const auto kBest = __builtin_cpu_supports("avx512f") ? &Stream512
                            : __builtin_cpu_supports("avx2")  ? &Stream256
                                                              : &Stream128;
  kBest(to, from, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

void StoreFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// One direction of telling: a count that only rises, in memory that both sides map.
struct alignas(64) Bell {
  std::atomic<uint32_t> rung{0};

  void Ring(bool spin) {
    rung.fetch_add(1, std::memory_order_release);
    if (!spin) syscall(SYS_futex, &rung, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  void Wait(uint32_t past, bool spin) {
    while (rung.load(std::memory_order_acquire) == past) {
      // A time-out, for the other side may be gone; the runner ends this process then.
      const timespec limit{.tv_sec = 1, .tv_nsec = 0};
      if (!spin) syscall(SYS_futex, &rung, FUTEX_WAIT, past, &limit, nullptr, 0);
    }
  }
};

struct Bells {
  Bell written;
  Bell answered;
};

class RawShm : public Contestant {
 public:
  explicit RawShm(const Config& config)
      : config_(config), cache_(MapShared(config.cache_fd, config.bytes)) {
    if (config.prefill) return;
    bells_fd_ = MakeShared(sizeof(Bells));
    bells_ = new (MapShared(bells_fd_, sizeof(Bells)).data()) Bells;
  }

  std::span<std::byte> memory() override { return cache_; }

  Json Hello() override {
    return {{"pid", getpid()},
            {"bells", bells_fd_},
            {"cache", config_.cache_fd},
            {"base", reinterpret_cast<uint64_t>(cache_.data())}};
  }

  void Meet(const Json& other) override {
    if (!config_.prefill) return;
    pid_ = other.at("pid").get<pid_t>();
    const int bells = OpenOf(pid_, other.at("bells").get<int>());
    bells_ = reinterpret_cast<Bells*>(MapShared(bells, sizeof(Bells)).data());
    if (config_.mode == "attached") {
      target_ = other.at("base").get<uint64_t>();
    } else {
      const int cache = OpenOf(pid_, other.at("cache").get<int>());
      target_ = reinterpret_cast<uint64_t>(MapShared(cache, config_.bytes).data());
    }
  }

  double Round(const Blocks& blocks) override {
    const uint32_t past = rounds_++;
    if (!config_.prefill) {
      bells_->written.Wait(past, config_.spin);
      bells_->answered.Ring(config_.spin);
      return 0;
    }
    std::vector<std::thread> others;
    const size_t count = blocks.source_ids.size();
    for (uint64_t t = 1; t < config_.threads; ++t) {
      others.emplace_back(
          [&, t] { Move(blocks, count * t / config_.threads, count * (t + 1) / config_.threads); });
    }
    Move(blocks, 0, count / config_.threads);
    for (std::thread& other : others) other.join();
    bells_->written.Ring(config_.spin);
    bells_->answered.Wait(past, config_.spin);
    return 0;
  }

 private:
  void Move(const Blocks& blocks, size_t begin, size_t end) {
    if (config_.mode == "attached") {
      MoveAttached(blocks, begin, end);
    } else {
      MoveMapped(blocks, begin, end);
    }
  }

  void MoveMapped(const Blocks& b, size_t begin, size_t end) {
    auto* target = reinterpret_cast<std::byte*>(target_);
    const bool stream = config_.mode == "stream" && b.block_bytes % 64 == 0;
    for (size_t i = begin; i < end; ++i) {
      std::byte* to = target + b.target_ids[i] * b.block_bytes;
      const std::byte* from = memory().data() + b.source_ids[i] * b.block_bytes;
      if (stream) {
        StreamCopy(to, from, b.block_bytes);
      } else {
        std::memcpy(to, from, b.block_bytes);
      }
    }
    if (stream) StoreFence();
  }

  void MoveAttached(const Blocks& b, size_t begin, size_t end) {
    std::vector<iovec> from(kMaxRuns);
    std::vector<iovec> to(kMaxRuns);
    // One call moves at most 2 GiB.
    const size_t fit = std::max<size_t>((size_t{1} << 30) / b.block_bytes, 1);
    for (size_t at = begin; at < end;) {
      const size_t n = std::min({kMaxRuns, end - at, fit});
      for (size_t i = 0; i < n; ++i) {
        from[i] = {memory().data() + b.source_ids[at + i] * b.block_bytes, b.block_bytes};
        to[i] = {reinterpret_cast<void*>(target_ + b.target_ids[at + i] * b.block_bytes),
                 b.block_bytes};
      }
      const ssize_t moved = process_vm_writev(pid_, from.data(), n, to.data(), n, 0);
      if (moved != static_cast<ssize_t>(n * b.block_bytes)) FailErrno("process_vm_writev");
      at += n;
    }
  }

  const Config config_;
  const std::span<std::byte> cache_;
  int bells_fd_ = -1;
  Bells* bells_ = nullptr;
  pid_t pid_ = 0;
  uint64_t target_ = 0;  // where the target's cache is: mapped here, or in its own process
  uint32_t rounds_ = 0;
};

}  // namespace
}  // namespace compare

int main(int argc, char** argv) {
  return compare::RunDriver(argc, argv, [](const compare::Config& config) {
    if (config.mode != "copy" && config.mode != "stream" && config.mode != "attached") {
      compare::Fail("--mode must be copy, stream or attached");
    }
    return std::make_unique<compare::RawShm>(config);
  });
}
