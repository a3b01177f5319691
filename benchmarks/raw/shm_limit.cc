// What this host's memory gives between two address spaces: the floor under
// `kvxfer bench --backend shm`.
//
//   copy          memcpy between two shared mappings, block by block
//   stream        the same with non-temporal stores
//   stream-ahead  the same, asking for the first lines of the next page or block ahead
//   attached      process_vm_writev of up to 1,024 blocks at once, from private memory into private
//                 memory of another process
//
// Blocks are permuted on both sides as in `kvxfer bench`. The first round is not counted. Shared
// mappings have huge pages (MADV_COLLAPSE, Linux 6.1), as `bench --memory mapped`, or with
// `--pages small` the smallest, as `--memory mapped-small`; private memory is what malloc gives.

#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "benchmarks/raw/raw.h"

namespace raw {
namespace {

constexpr size_t kMaxRuns = 1024;
constexpr std::byte kContent{7};

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

constexpr size_t kStep = 4096;

// As StreamCopy, in steps, each of which begins by asking for the head of the one that follows:
// no hardware prefetcher knows where the next page or block lies.
void StreamAhead(std::byte* to, const std::byte* from, size_t bytes, const std::byte* next) {
  for (size_t at = 0; at < bytes; at += kStep) {
    const size_t step = std::min(kStep, bytes - at);
    const std::byte* ahead = at + step < bytes ? from + at + step : next;
    for (size_t line = 0; line < 8; ++line) __builtin_prefetch(ahead + 64 * line);
    StreamCopy(to + at, from + at, step);
  }
}

void CopyRound(const Scatter& s, const std::byte* source, std::byte* target,
               const std::string& mode) {
  for (size_t i = 0; i < s.from.size(); ++i) {
    std::byte* to = target + s.to[i] * s.block_bytes;
    const std::byte* from = source + s.from[i] * s.block_bytes;
    if (mode == "stream") {
      StreamCopy(to, from, s.block_bytes);
    } else if (mode == "stream-ahead") {
      const size_t next = std::min(i + 1, s.from.size() - 1);
      StreamAhead(to, from, s.block_bytes, source + s.from[next] * s.block_bytes);
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

std::vector<double> TimeRounds(const Options& options, const std::function<void()>& round) {
  std::vector<double> seconds;
  for (uint64_t i = 0; i <= options.rounds; ++i) {
    const double start = Now();
    round();
    if (i > 0) seconds.push_back(Now() - start);
  }
  return seconds;
}

void CheckArrived(const std::byte* target, uint64_t bytes) {
  if (std::all_of(target, target + bytes, [](std::byte b) { return b == kContent; })) return;
  std::fprintf(stderr, "not every byte arrived\n");
  std::exit(1);
}

std::vector<double> RunMapped(const Options& options, const Scatter& scatter,
                              const std::string& mode) {
  const std::span<std::byte> source =
      SharedMemory(options.total, static_cast<int>(kContent), options);
  const std::span<std::byte> target = SharedMemory(options.total, 0, options);
  std::vector<double> seconds =
      TimeRounds(options, [&] { CopyRound(scatter, source.data(), target.data(), mode); });
  CheckArrived(target.data(), scatter.from.size() * scatter.block_bytes);
  munmap(source.data(), source.size());
  munmap(target.data(), target.size());
  return seconds;
}

// The child's copy of `target` becomes its own where it writes to it.
std::vector<double> RunAttached(const Options& options, const Scatter& scatter) {
  std::vector<std::byte> source(options.total, kContent);
  std::vector<std::byte> target(options.total);
  int ready[2];
  if (pipe(ready) != 0) Die("pipe");
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child == 0) {
    std::memset(target.data(), 1, target.size());
    if (write(ready[1], "!", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char word = 0;
  if (read(ready[0], &word, 1) != 1) Die("the other process");
  std::vector<double> seconds =
      TimeRounds(options, [&] { AttachedRound(scatter, source.data(), target.data(), child); });
  const iovec all{target.data(), scatter.from.size() * scatter.block_bytes};
  if (process_vm_readv(child, &all, 1, &all, 1, 0) != static_cast<ssize_t>(all.iov_len)) {
    Die("process_vm_readv");
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  CheckArrived(target.data(), all.iov_len);
  return seconds;
}

void Run(const Options& options, const std::string& mode, uint64_t block_bytes, Report& report) {
  if (block_bytes % 64 != 0) return;
  const uint64_t blocks = options.total / block_bytes;
  const Scatter scatter{block_bytes, Permutation(blocks, kSourceSeed),
                        Permutation(blocks, kTargetSeed)};
  report.Add(
      mode, block_bytes, blocks,
      mode == "attached" ? RunAttached(options, scatter) : RunMapped(options, scatter, mode));
}

}  // namespace
}  // namespace raw

int main(int argc, char** argv) {
  const raw::Options options = raw::ParseOptions(argc, argv);
  raw::Report report(options.json);
  for (const char* mode : {"copy", "stream", "stream-ahead", "attached"}) {
    if (!options.mode.empty() && options.mode != mode) continue;
    for (uint64_t size : options.block_sizes) raw::Run(options, mode, size, report);
  }
  return 0;
}
