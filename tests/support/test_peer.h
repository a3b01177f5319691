// A peer that a test drives from outside: in a process of its own, or on a thread of this one. Both
// obey the same small protocol over a socket pair; a call returns when the peer has answered.
#ifndef KVXFER_TESTS_SUPPORT_TEST_PEER_H_
#define KVXFER_TESTS_SUPPORT_TEST_PEER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/flavour.h"
#include "tests/support/kv_nodes.h"

namespace kvxfer::testing {

using Fields = std::vector<std::string>;

// The peer's side: obeys commands from `fd` until it closes. Closes `fd`.
void ServeCommands(int fd);

enum class Where : uint8_t { kThread, kProcess };

// What became of a transfer that the peer posted.
struct TestTransferEnd {
  absl::Status status;
  TransferState state = TransferState::kActive;
  Delivery delivery = Delivery::kNone;
};

class TestPeer {
 public:
  static absl::StatusOr<std::unique_ptr<TestPeer>> Start(Where where);
  ~TestPeer();
  TestPeer(const TestPeer&) = delete;
  TestPeer& operator=(const TestPeer&) = delete;

  const ChildProcess& process() const { return process_; }

  // An agent with one registered memory of `bytes`; replaces the one before.
  absl::Status Create(const AgentOptions& options, MemoryType memory, uint64_t bytes,
                      Access access = Access::kReadWrite);
  absl::Status DestroyAgent();
  // The agent's memory becomes a KV cache, "kv".
  absl::Status RegisterKvCache(const KvSlab& slab);
  absl::StatusOr<std::string> Metadata();
  absl::StatusOr<std::string> AddPeer(std::string_view metadata);
  absl::StatusOr<std::string> ListenAddress();
  absl::StatusOr<uint64_t> MemoryAddress();

  absl::Status Fill(uint64_t pattern_seed);
  absl::Status Clear();
  absl::Status CheckArrived(const Shape& shape, Side side, uint64_t pattern_seed);
  absl::Status CheckZero();
  // No byte is kPoison.
  absl::Status CheckNoPoison();
  absl::StatusOr<uint64_t> MemoryDigest();

  // Numbers of transfers count from 0.
  absl::StatusOr<int> Post(bool read, std::string_view peer, uint64_t remote_base,
                           const Shape& shape, const TransferOptions& options);
  // The same for KV blocks, `ids` at both ends, of the caches "kv".
  struct KvTransfer {
    bool read = false;
    std::string peer{};
    std::vector<uint32_t> ids{};
    uint64_t tokens = 0;
    uint32_t layers = kAllLayers;  // from the first on
    KvOptions options{};           // the name of a request or lease, the wait, the deadline
  };
  absl::StatusOr<int> PostKv(const KvTransfer& transfer);
  absl::StatusOr<TestTransferEnd> WaitEnd(int transfer, Duration timeout);

  // The payload.
  absl::StatusOr<std::string> WaitNotification(Duration timeout);
  absl::StatusOr<QuiesceResult> Quiesce(std::string_view peer, Duration timeout);
  // The process id of a child that the peer's process forks, which sleeps and outlives it: to be
  // killed.
  absl::StatusOr<pid_t> ForkSleeper();
  // CPU time that the peer's process has used, in all threads.
  absl::StatusOr<Duration> CpuTime();

 private:
  TestPeer(int fd, ChildProcess process, std::thread thread);
  absl::StatusOr<Fields> Call(const Fields& request);
  absl::StatusOr<std::string> CallForText(const Fields& request);
  absl::StatusOr<uint64_t> CallForNumber(const Fields& request);

  int fd_;
  ChildProcess process_;
  std::thread thread_;
};

// Both directions of AddPeer.
absl::Status Introduce(TestPeer& a, TestPeer& b);
absl::Status Introduce(Agent& a, TestPeer& b);

// One message of the protocol. Receive: Unavailable at the end of the stream.
absl::Status SendFields(int fd, const Fields& fields);
absl::StatusOr<Fields> ReceiveFields(int fd);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TEST_PEER_H_
