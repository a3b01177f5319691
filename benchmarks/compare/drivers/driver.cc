#include "benchmarks/compare/drivers/driver.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "benchmarks/compare/drivers/workload.h"

namespace compare {
namespace {

void Say(const Json& line) {
  std::cout << line.dump() << std::endl;  // flushed: somebody waits for it
  // Nobody is left to measure for.
  if (!std::cout) std::_Exit(1);
}

// User and system time of this process, all threads, in seconds.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Driver {
 public:
  Driver(const Config& config, std::unique_ptr<Contestant> contestant)
      : config_(config), contestant_(std::move(contestant)) {}

  Json Answer(const Json& order) {
    const auto command = order.at("cmd").get<std::string>();
    if (command == "meet") return Meet(order);
    if (command == "prepare") return Prepare(order);
    if (command == "rounds") return Rounds(order);
    if (command == "check") return Check();
    Fail("no such command: " + command);
  }

 private:
  Json Meet(const Json& order) {
    contestant_->Meet(order.at("hello"));
    return Json::object();
  }

  // The source is filled, the target cleared, so that bytes that were right before cannot pass.
  Json Prepare(const Json& order) {
    const auto count = order.at("blocks").get<uint32_t>();
    blocks_ = {.block_bytes = order.at("block_bytes").get<uint64_t>(),
               .source_ids = Permutation(count, kSourceSeed),
               .target_ids = Permutation(count, kTargetSeed)};
    seed_ = order.at("seed").get<uint64_t>();
    const std::span<std::byte> memory = contestant_->memory();
    if (count == 0 || blocks_.block_bytes % sizeof(uint64_t) != 0 ||
        blocks_.block_bytes > memory.size() / count) {
      Fail("a cache of " + std::to_string(memory.size()) + " bytes does not hold these blocks");
    }
    if (config_.prefill) {
      FillBlocks(memory, blocks_.block_bytes, blocks_.source_ids, seed_);
    } else {
      std::memset(memory.data(), 0, memory.size());
    }
    contestant_->Prepare(blocks_);
    return {
        {"fingerprint", Fingerprint(blocks_.block_bytes, blocks_.source_ids, blocks_.target_ids)}};
  }

  Json Rounds(const Json& order) {
    const auto count = order.at("count").get<uint64_t>();
    std::vector<double> seconds(count);
    double preparing = 0;
    const double cpu_before = CpuSeconds();
    for (double& round : seconds) {
      const double start = Now();
      preparing += contestant_->Round(blocks_);
      round = Now() - start;
    }
    const double cpu = CpuSeconds() - cpu_before;
    return {{"seconds", seconds}, {"preparing_s", preparing}, {"cpu_s", cpu}};
  }

  Json Check() {
    const std::string wrong =
        CheckBlocks(contestant_->memory(), blocks_.block_bytes, blocks_.target_ids, seed_);
    if (!wrong.empty()) Fail(wrong);
    return Json::object();
  }

  const Config config_;
  const std::unique_ptr<Contestant> contestant_;
  Blocks blocks_;
  uint64_t seed_ = 0;
};

}  // namespace

void Fail(const std::string& what) {
  Say({{"error", what}});
  std::_Exit(1);
}

void FailErrno(const std::string& what) { Fail(what + ": " + std::strerror(errno)); }

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int RunDriver(int argc, char** argv, const Factory& make) {
  // Whoever polls for a peer would go on for ever when the runner is killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Where Yama lets only ancestors attach, prefill and decode are siblings.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  Config config;
  std::string role;
  CLI::App app("One side of one contestant of benchmarks/compare; takes its orders on its input.");
  app.add_option("--role", role)->required()->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--bytes", config.bytes)->required()->check(CLI::PositiveNumber);
  app.add_option("--cache-fd", config.cache_fd)->required()->check(CLI::NonNegativeNumber);
  app.add_option("--mode", config.mode);
  app.add_option("--threads", config.threads)->check(CLI::Range(1, 64));
  app.add_option("--connections", config.connections)->check(CLI::Range(1, 64));
  app.add_flag("--spin", config.spin);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  config.prefill = role == "prefill";

  std::unique_ptr<Contestant> contestant = make(config);
  Say({{"hello", contestant->Hello()}});
  Driver driver(config, std::move(contestant));
  for (std::string line; std::getline(std::cin, line);) {
    try {
      Say(driver.Answer(Json::parse(line)));
    } catch (const Json::exception& error) {
      Fail(std::string("not an order: ") + error.what());
    }
  }
  return 0;
}

}  // namespace compare
