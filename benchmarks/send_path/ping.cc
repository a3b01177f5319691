// Round trips between two agents of this process, for tools that count instructions and system
// calls: benchmarks/micro/count_ping runs it. What is counted lies between kvxfer_count_from and
// kvxfer_count_to. Each agent has a thread that writes one block with a notification, and waits for
// the other's.

#include <dlfcn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "benchmarks/send_path/marks.h"
#include "kvxfer/agent.h"
#include "kvxfer/log.h"
#include "kvxfer/memory.h"

using Word = long;  // NOLINT(google-runtime-int): the C library's own

extern "C" {
// valgrind knows no pidfd_open. Both agents are this process, which lives as long as they do: a
// descriptor that never becomes readable stands in.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
Word syscall(Word number, ...) {
  using Raw = Word (*)(Word, ...);
  static const auto raw = reinterpret_cast<Raw>(dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  std::array<Word, 6> arguments;
  for (Word& argument : arguments) argument = va_arg(list, Word);
  va_end(list);
  const Word result = raw(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
  if (result >= 0 || number != SYS_pidfd_open || errno != ENOSYS) return result;
  return eventfd(0, EFD_CLOEXEC);
}
}

namespace kvxfer::testing {
namespace {

constexpr Duration kLong = std::chrono::minutes(5);  // also under valgrind

struct Side {
  HostBuffer memory{};
  std::unique_ptr<Agent> agent{};
  std::string peer{};
  Descriptor mine{};
  Descriptor theirs{};

  absl::Status Open(std::string name, const std::string& backend, uint64_t bytes, Duration spin) {
    auto buffer = HostBuffer::Allocate(bytes, HostPages::kSmall);
    if (!buffer.ok()) return buffer.status();
    memory = *std::move(buffer);
    AgentOptions options;
    options.name = std::move(name);
    options.backends = {backend};
    options.spin = spin;
    auto made = Agent::Create(options);
    if (!made.ok()) return made.status();
    agent = *std::move(made);
    mine = {.address = reinterpret_cast<uintptr_t>(memory.data()), .bytes = bytes};
    return agent->RegisterMemory(memory.span(), Access::kReadWrite).status();
  }
  absl::Status Meet(const Side& other) {
    auto metadata = other.agent->Metadata();
    if (!metadata.ok()) return metadata.status();
    auto name = agent->AddPeer(*metadata);
    if (!name.ok()) return name.status();
    peer = *std::move(name);
    theirs = other.mine;
    return absl::OkStatus();
  }
  absl::Status Say() {
    TransferOptions options;
    options.notification = "request 7";
    return agent
        ->Write(peer, DescriptorBlocks{.local = {&mine, 1}, .remote = {&theirs, 1}}, options)
        .status();
  }
  absl::Status Hear() { return agent->WaitNotification(kLong).status(); }
};

absl::Status Answer(Side& side, int trips) {
  for (int i = 0; i < trips; ++i) {
    absl::Status status = side.Hear();
    if (status.ok()) status = side.Say();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Ask(Side& side, int trips) {
  constexpr int kWarmUp = 20;
  for (int i = -kWarmUp; i < trips; ++i) {
    if (i == 0) kvxfer_count_from();
    absl::Status status = side.Say();
    if (status.ok()) status = side.Hear();
    if (!status.ok()) return status;
  }
  kvxfer_count_to();
  return absl::OkStatus();
}

absl::Status Run(const std::string& backend, uint64_t bytes, int trips, Duration spin) {
  Side here;
  Side there;
  if (auto status = here.Open("here", backend, bytes, spin); !status.ok()) return status;
  if (auto status = there.Open("there", backend, bytes, spin); !status.ok()) return status;
  if (auto status = here.Meet(there); !status.ok()) return status;
  if (auto status = there.Meet(here); !status.ok()) return status;
  absl::Status answered;
  std::thread other([&] { answered = Answer(there, 20 + trips); });
  absl::Status asked = Ask(here, trips);
  other.join();
  return asked.ok() ? answered : asked;
}

int Main(int argc, char** argv) {
  CLI::App app("Round trips of small notified writes between two agents.", "ping_path");
  std::string backend = "shm";
  uint64_t bytes = 64;
  int trips = 100;
  bool spins = false;
  app.add_option("--backend", backend, "Over this backend");
  app.add_option("--size", bytes, "Bytes of each block")->check(CLI::Range(1, 1 << 20));
  app.add_option("--trips", trips, "Round trips that are counted")->check(CLI::Range(1, 1'000'000));
  app.add_flag("--spin", spins, "They spin, in place of sleeping");
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);
  const absl::Status status =
      Run(backend, bytes, trips, spins ? Duration(std::chrono::seconds(1)) : Duration::zero());
  if (status.ok()) return 0;
  std::fprintf(stderr, "ping_path: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvxfer::testing

int main(int argc, char** argv) { return kvxfer::testing::Main(argc, argv); }
