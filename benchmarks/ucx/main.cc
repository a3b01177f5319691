// kvxfer over the backend `ucx` beside UCX's own put: the same library, transports, memory, block
// sizes and number of blocks in flight, in turn within one run of two processes.
//
//   kvxfer_ucx_bench --tls tcp,self --sizes 4096,16384,65536,1048576 --in-flight 64
//
// Prints medians over the turns, and the median of the turns' ratios: what else the machine does
// meets both of a turn.

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/ucx/side.h"
#include "kvxfer/log.h"

namespace ucx_bench {

void Fail(const std::string& why) {
  std::fprintf(stderr, "kvxfer_ucx_bench: %s\n", why.c_str());
  std::_Exit(1);
}

void Tell(int fd, const std::string& words) {
  const uint64_t bytes = words.size();
  std::string all(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  all += words;
  for (size_t at = 0; at < all.size();) {
    const ssize_t n = ::send(fd, &all[at], all.size() - at, MSG_NOSIGNAL);
    if (n <= 0) Fail("the other process is gone");
    at += static_cast<size_t>(n);
  }
}

std::string Hear(int fd) {
  const auto take = [fd](void* to, size_t bytes) {
    if (bytes == 0) return;
    const ssize_t n = ::recv(fd, to, bytes, MSG_WAITALL);
    if (n != static_cast<ssize_t>(bytes)) Fail("the other process is gone");
  };
  uint64_t bytes = 0;
  take(&bytes, sizeof(bytes));
  std::string words(bytes, '\0');
  take(words.data(), bytes);
  return words;
}

namespace {

struct Options {
  std::string tls = "tcp,self";
  std::string net_devices = "lo";
  std::vector<uint64_t> sizes = {4096, 16384, 65536, 262144, 1048576};
  uint64_t in_flight = 64;
  uint64_t volume_mib = 32;
  uint64_t memory_mib = 128;
  int turns = 15;
  std::string json;
};

struct Figures {
  uint64_t block = 0;
  std::array<std::vector<double>, 2> gb_per_s;  // raw, kvxfer
  std::vector<double> ratios;
};

double Median(std::vector<double> of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

double Seconds(Side& side, const Round& round) {
  const auto start = std::chrono::steady_clock::now();
  side.Write(round);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Figures Measure(const Options& options, uint64_t block, int fd, std::span<Side* const, 2> sides) {
  Figures out{.block = block, .gb_per_s = {}, .ratios = {}};
  const uint64_t volume = std::max(options.volume_mib << 20, block);
  const Round round{.block = block, .in_flight = options.in_flight, .volume = volume};
  for (int turn = -1; turn < options.turns; ++turn) {
    std::array<double, 2> rate{};
    for (size_t i = 0; i < 2; ++i) {
      const size_t which = turn % 2 == 0 ? i : 1 - i;
      Tell(fd, std::to_string(which));
      rate[which] = static_cast<double>(volume) / Seconds(*sides[which], round) / 1e9;
    }
    if (turn < 0) continue;  // warms up
    for (size_t i = 0; i < 2; ++i) out.gb_per_s[i].push_back(rate[i]);
    out.ratios.push_back(rate[1] / rate[0]);
  }
  return out;
}

void Report(const Options& options, const std::vector<Figures>& all) {
  std::printf("%10s %12s %14s %8s\n", "block", "put GB/s", "kvxfer GB/s", "ratio");
  nlohmann::json document = {{"tls", options.tls},
                             {"in_flight", options.in_flight},
                             {"turns", options.turns},
                             {"results", nlohmann::json::array()}};
  for (const Figures& f : all) {
    const double put = Median(f.gb_per_s[0]);
    const double kvxfer = Median(f.gb_per_s[1]);
    const double ratio = Median(f.ratios);
    std::printf("%10llu %12.2f %14.2f %8.2f\n", static_cast<unsigned long long>(f.block), put,
                kvxfer, ratio);
    document["results"].push_back({{"block_bytes", f.block},
                                   {"put_gb_per_s", put},
                                   {"kvxfer_gb_per_s", kvxfer},
                                   {"ratio", ratio}});
  }
  if (options.json.empty()) return;
  std::FILE* const file = std::fopen(options.json.c_str(), "w");
  if (file == nullptr) Fail(options.json + ": " + std::strerror(errno));
  std::fprintf(file, "%s\n", document.dump(2).c_str());
  std::fclose(file);
}

std::span<std::byte> Memory(uint64_t bytes) {
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) Fail(std::string("mmap: ") + std::strerror(errno));
  std::memset(at, 1, bytes);
  return {static_cast<std::byte*>(at), bytes};
}

int Run(const Options& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) Fail("socketpair");
  const pid_t target = ::fork();
  if (target < 0) Fail("fork");
  const bool initiator = target > 0;
  const int fd = ends[initiator ? 0 : 1];
  ::close(ends[initiator ? 1 : 0]);
  const Setup setup{.tls = options.tls,
                    .net_devices = options.net_devices,
                    .memory = Memory(options.memory_mib << 20),
                    .fd = fd};
  const std::unique_ptr<Side> raw = MakeRawSide(setup);
  const std::unique_ptr<Side> agents = MakeAgentSide(setup, initiator);
  const std::array<Side*, 2> sides = {raw.get(), agents.get()};
  if (!initiator) {
    for (std::string word = Hear(fd); word != "end"; word = Hear(fd)) {
      sides[word == "0" ? 0 : 1]->Serve();
    }
    std::_Exit(0);
  }
  std::vector<Figures> all;
  for (const uint64_t block : options.sizes) all.push_back(Measure(options, block, fd, sides));
  Tell(fd, "end");
  int status = 0;
  ::waitpid(target, &status, 0);
  Report(options, all);
  std::fflush(stdout);
  std::_Exit(0);  // what is left of UCX goes with the process
}

int Main(int argc, char** argv) {
  CLI::App app("kvxfer over the backend ucx beside UCX's own put, in turn.", "kvxfer_ucx_bench");
  Options options;
  app.add_option("--tls", options.tls, "Transports, as UCX_TLS")->capture_default_str();
  app.add_option("--net-devices", options.net_devices, "As UCX_NET_DEVICES")->capture_default_str();
  app.add_option("--sizes", options.sizes, "Bytes of a block")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 26))
      ->capture_default_str();
  app.add_option("--in-flight", options.in_flight, "Blocks at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--volume", options.volume_mib, "MiB of a turn")->capture_default_str();
  app.add_option("--memory", options.memory_mib, "MiB on each side")->capture_default_str();
  app.add_option("--turns", options.turns, "Measured")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--json", options.json, "File for the figures");
  CLI11_PARSE(app, argc, argv);
  kvxfer::SetLogLevel(kvxfer::LogLevel::kError);
  return Run(options);
}

}  // namespace
}  // namespace ucx_bench

int main(int argc, char** argv) { return ucx_bench::Main(argc, argv); }
