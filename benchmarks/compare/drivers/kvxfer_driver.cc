// kvxfer as a contestant. Modes: tcp, mapped (over shm, the cache told to be shared memory, as
// HostBuffer is), attached (over shm, the cache told to be memory like any other). --spin lets the
// agent spin before it sleeps; else it never does. ucx goes over the transports of UCX_TLS.

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/compare/drivers/driver.h"
#include "benchmarks/compare/drivers/memory.h"
#include "kvxfer/agent.h"
#include "kvxfer/log.h"

namespace compare {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Longer than any round: what hangs is ended by the runner.
constexpr seconds kPatience{120};

void Require(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

class Kvxfer : public Contestant {
 public:
  explicit Kvxfer(const Config& config)
      : config_(config), memory_(MapShared(config.cache_fd, config.bytes)) {
    // Without the descriptor it is memory like any other.
    const kvxfer::MemorySpan span{.data = memory_.data(),
                                  .bytes = memory_.size(),
                                  .shared_fd = config.mode == "mapped" ? config.cache_fd : -1};
    kvxfer::AgentOptions options;
    options.name = config.prefill ? "prefill" : "decode";
    const bool by_name = config.mode == "tcp" || config.mode == "ucx";
    options.backends = {by_name ? config.mode : "shm"};
    options.require_backends = options.backends;
    if (config.mode == "tcp") {
      options.backend["tcp"]["streams"] = std::to_string(config.connections);
      // With one thread it is the agent's own.
      const uint64_t beside = config.threads > 1 ? config.threads : 0;
      options.backend["tcp"]["data_threads"] = std::to_string(beside);
    } else if (!by_name) {
      options.backend["shm"]["copy_threads"] = std::to_string(config.threads);
    }
    options.spin = config.spin ? milliseconds(1) : milliseconds(0);
    agent_ = Require(kvxfer::Agent::Create(options));
    Require(agent_->RegisterMemory(span, kvxfer::Access::kReadWrite).status());
  }

  std::span<std::byte> memory() override { return memory_; }

  Json Hello() override {
    const std::string metadata = Require(agent_->Metadata());
    return {{"metadata", Json::binary({metadata.begin(), metadata.end()})},
            {"base", reinterpret_cast<uint64_t>(memory_.data())}};
  }

  void Meet(const Json& other) override {
    std::string metadata;
    for (const Json& byte : other.at("metadata").at("bytes")) {
      metadata.push_back(static_cast<char>(byte.get<uint8_t>()));
    }
    remote_base_ = other.at("base").get<uint64_t>();
    peer_ = Require(agent_->AddPeer(metadata));
  }

  double Round(const Blocks& blocks) override {
    if (!config_.prefill) {
      Require(agent_->WaitNotification(kPatience).status());
      answer_ = Require(agent_->Notify(peer_, "answer"));
      return 0;
    }
    kvxfer::PagedRegion local{.base = reinterpret_cast<uint64_t>(memory_.data()),
                              .block_bytes = blocks.block_bytes,
                              .stride = blocks.block_bytes,
                              .count = memory_.size() / blocks.block_bytes};
    kvxfer::PagedRegion remote = local;
    remote.base = remote_base_;
    const kvxfer::Transfer transfer =
        Require(agent_->Write(peer_,
                              {.local = {&local, 1},
                               .remote = {&remote, 1},
                               .local_ids = blocks.source_ids,
                               .remote_ids = blocks.target_ids},
                              {.notification = "written", .deadline = kPatience}));
    const absl::StatusOr<kvxfer::Notification> answer = agent_->WaitNotification(kPatience);
    // The transfer's own end says more than that no answer came.
    Require(transfer.status());
    Require(answer.status());
    return 0;
  }

 private:
  const Config config_;
  const std::span<std::byte> memory_;
  std::unique_ptr<kvxfer::Agent> agent_;  // after the memory, which must outlive it
  kvxfer::Transfer answer_;
  std::string peer_;
  uint64_t remote_base_ = 0;
};

}  // namespace
}  // namespace compare

int main(int argc, char** argv) {
  kvxfer::SetLogLevel(kvxfer::LogLevel::kError);
  return compare::RunDriver(argc, argv, [](const compare::Config& config) {
    if (config.mode != "tcp" && config.mode != "mapped" && config.mode != "attached" &&
        config.mode != "ucx") {
      compare::Fail("--mode must be tcp, mapped, attached or ucx");
    }
    return std::make_unique<compare::Kvxfer>(config);
  });
}
