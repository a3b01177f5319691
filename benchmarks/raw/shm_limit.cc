// What this host's memory gives between two address spaces: the floor under
// `kvxfer bench --backend shm`.
//
//   copy      memcpy from private memory into a shared mapping, block by block
//   stream    the same with non-temporal stores
//   attached  process_vm_writev of up to 1,024 blocks at once into another process
//
// Blocks are permuted on both sides as in `kvxfer bench`. The first round is not counted.

#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "benchmarks/raw/raw.h"

namespace raw {
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

struct Scatter {
  uint64_t block_bytes;
  std::vector<uint32_t> from;
  std::vector<uint32_t> to;
};

void CopyRound(const Scatter& s, const std::byte* source, std::byte* target, bool stream) {
  for (size_t i = 0; i < s.from.size(); ++i) {
    std::byte* to = target + s.to[i] * s.block_bytes;
    const std::byte* from = source + s.from[i] * s.block_bytes;
    if (stream) {
      StreamCopy(to, from, s.block_bytes);
    } else {
      std::memcpy(to, from, s.block_bytes);
    }
  }
  StoreFence();
}

void AttachedRound(const Scatter& s, std::byte* source, std::byte* target, pid_t pid) {
  std::vector<iovec> from(kMaxRuns);
  std::vector<iovec> to(kMaxRuns);
  for (size_t at = 0; at < s.from.size();) {
    // One call moves at most 2 GiB.
    const size_t fit = (size_t{1} << 30) / s.block_bytes;
    const size_t n = std::min({kMaxRuns, s.from.size() - at, std::max<size_t>(fit, 1)});
    for (size_t i = 0; i < n; ++i) {
      from[i] = {source + s.from[at + i] * s.block_bytes, s.block_bytes};
      to[i] = {target + s.to[at + i] * s.block_bytes, s.block_bytes};
    }
    const ssize_t moved = process_vm_writev(pid, from.data(), n, to.data(), n, 0);
    if (moved != static_cast<ssize_t>(n * s.block_bytes)) Die("process_vm_writev");
    at += n;
  }
}

void Run(const Options& options, const std::string& mode, uint64_t block_bytes, Report& report) {
  if (block_bytes % 64 != 0) return;
  const uint64_t blocks = options.total / block_bytes;
  const Scatter scatter{block_bytes, Permutation(blocks, kSourceSeed),
                        Permutation(blocks, kTargetSeed)};
  std::vector<std::byte> source(options.total, std::byte{7});
  const std::span<std::byte> target = SharedMemory(options.total, 0);
  pid_t child = -1;
  if (mode == "attached") {
    child = fork();
    if (child == 0) {
      for (;;) pause();
    }
  }
  std::vector<double> seconds;
  for (uint64_t round = 0; round <= options.rounds; ++round) {
    const double start = Now();
    if (mode == "attached") {
      AttachedRound(scatter, source.data(), target.data(), child);
    } else {
      CopyRound(scatter, source.data(), target.data(), mode == "stream");
    }
    if (round > 0) seconds.push_back(Now() - start);
  }
  if (child > 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  if (std::memcmp(target.data(), source.data(), blocks * block_bytes) != 0) {
    std::fprintf(stderr, "not every byte arrived\n");
    std::exit(1);
  }
  report.Add(mode, block_bytes, blocks, std::move(seconds));
  munmap(target.data(), target.size());
}

}  // namespace
}  // namespace raw

int main(int argc, char** argv) {
  const raw::Options options = raw::ParseOptions(argc, argv);
  raw::Report report(options.json);
  for (const char* mode : {"copy", "stream", "attached"}) {
    if (!options.mode.empty() && options.mode != mode) continue;
    for (uint64_t size : options.block_sizes) raw::Run(options, mode, size, report);
  }
  return 0;
}
