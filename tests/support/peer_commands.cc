// The peer's side of test_peer.h: one agent, one memory, and the commands on them.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"
#include "tests/support/agents.h"
#include "tests/support/pattern.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

uint64_t ToNumber(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }
Duration ToDuration(const std::string& text) {
  return Duration(std::strtoll(text.c_str(), nullptr, 10));
}

class CommandServer {
 public:
  // The result's fields, without the leading status.
  // Orders this thread's use of the memory with that of the engine's threads. Where peers agree
  // over sockets on who may touch it, as they do here, ThreadSanitizer cannot see that they did.
  void MeetEngine() {
    if (node_.agent != nullptr) (void)node_.agent->Metadata();
  }

  absl::StatusOr<Fields> Handle(const Fields& f) {
    const std::string& command = f.at(0);
    if (command == "create") return Create(f);
    if (node_.agent == nullptr) return absl::FailedPreconditionError("no agent was created");
    if (command == "post") return Post(f);
    if (command == "post_kv") return PostKv(f);
    if (command == "kv") return RegisterKvCache(f);
    if (command == "wait") return Wait(f);
    if (command == "quiesce") return Quiesce(f);
    if (command == "landed") return Arrived(f);
    if (command == "metadata") return One(node_.agent->Metadata());
    if (command == "add_peer") return One(node_.agent->AddPeer(f.at(1)));
    if (command == "notification") return WaitNotification(f);
    return HandleSimple(f);
  }

 private:
  absl::StatusOr<Fields> RegisterKvCache(const Fields& f) {
    const auto at = [&](size_t i) { return static_cast<uint32_t>(ToNumber(f.at(i))); };
    const KvSlab slab{
        .model = {.layers = at(1), .heads = at(2), .k_size = at(3), .v_size = at(4)},
        .shard = {.tp_rank = at(5), .tp_size = at(6), .first_layer = at(7), .layers = at(8)},
        .blocks = at(9),
        .block_tokens = at(10)};
    const absl::Status status = slab.Register(*node_.agent, node_.memory.address());
    if (!status.ok()) return status;
    return Fields{};
  }

  absl::StatusOr<Fields> HandleSimple(const Fields& f) {
    const std::string& command = f.at(0);
    if (command == "destroy") {
      transfers_.clear();
      node_.agent.reset();
      return Fields{};
    }
    if (command == "listen") return Fields{node_.agent->listen_address()};
    if (command == "address") return Fields{std::to_string(node_.memory.address())};
    if (command == "digest") return Fields{std::to_string(Digest(node_.memory.bytes()))};
    if (command == "fork") return Fields{std::to_string(ForkSleeper())};
    if (command == "cpu") return Fields{std::to_string(CpuNanoseconds())};
    if (command == "fill") {
      Pattern(ToNumber(f.at(1))).Fill(node_.memory.bytes());
      return Fields{};
    }
    if (command == "clear") {
      node_.memory.Clear();
      return Fields{};
    }
    if (command == "no_poison") {
      if (Contains(node_.memory.bytes(), kPoison)) {
        return absl::DataLossError("the poison has landed");
      }
      return Fields{};
    }
    if (command == "zero") {
      const size_t at = FirstNonZero(node_.memory.bytes());
      if (at != kNoMismatch) return absl::DataLossError(absl::StrCat("byte ", at, " was written"));
      return Fields{};
    }
    return absl::UnimplementedError(absl::StrCat("no command ", command));
  }

  static absl::StatusOr<Fields> One(absl::StatusOr<std::string> text) {
    if (!text.ok()) return text.status();
    return Fields{*std::move(text)};
  }

  absl::StatusOr<Fields> Create(const Fields& f) {
    AgentOptions options;
    options.name = f.at(1);
    options.backends = absl::StrSplit(f.at(2), ',');
    options.listen = f.at(3);
    options.advertise = f.at(4);
    options.heartbeat = ToDuration(f.at(5));
    options.suspect_after = ToDuration(f.at(6));
    for (size_t i = 10; i + 2 < f.size(); i += 3) options.backend[f[i]][f[i + 1]] = f[i + 2];
    transfers_.clear();
    node_ = Node();
    absl::StatusOr<Node> node =
        Node::Create(options, static_cast<MemoryType>(ToNumber(f.at(7))), ToNumber(f.at(8)),
                     static_cast<Access>(ToNumber(f.at(9))));
    if (!node.ok()) return node.status();
    node_ = *std::move(node);
    return Fields{};
  }

  absl::StatusOr<Fields> Post(const Fields& f) {
    const BlockSet blocks(Shape::FromString(f.at(4)), node_.memory.address(), ToNumber(f.at(3)));
    TransferOptions options;
    if (f.at(5) == "1") options.notification = f.at(6);
    options.deadline = ToDuration(f.at(7));
    absl::StatusOr<Transfer> transfer = f.at(1) == "1"
                                            ? blocks.Read(*node_.agent, f.at(2), options)
                                            : blocks.Write(*node_.agent, f.at(2), options);
    return Keep(std::move(transfer));
  }

  absl::StatusOr<Fields> PostKv(const Fields& f) {
    std::vector<uint32_t> ids;
    for (size_t i = 9; i < f.size(); ++i) ids.push_back(static_cast<uint32_t>(ToNumber(f[i])));
    const KvBlocks blocks{.cache = CacheName("kv"),
                          .local_ids = ids,
                          .remote_ids = ids,
                          .tokens = ToNumber(f.at(3)),
                          .layers = static_cast<uint32_t>(ToNumber(f.at(4)))};
    const KvOptions options{.request = RequestName(f.at(5)),
                            .lease = LeaseName(f.at(6)),
                            .lease_wait = ToDuration(f.at(7)),
                            .transfer = {.deadline = ToDuration(f.at(8))}};
    const std::vector<std::string> group{f.at(2)};
    return Keep(f.at(1) == "1" ? node_.agent->ReadBlocks(group, blocks, options)
                               : node_.agent->WriteBlocks(group, blocks, options));
  }

  // The result's field: its number.
  absl::StatusOr<Fields> Keep(absl::StatusOr<Transfer> transfer) {
    if (!transfer.ok()) return transfer.status();
    transfers_.push_back(*std::move(transfer));
    return Fields{std::to_string(transfers_.size() - 1)};
  }

  absl::StatusOr<Fields> Wait(const Fields& f) {
    const Transfer& transfer = transfers_.at(ToNumber(f.at(1)));
    const absl::Status end = transfer.Wait(ToDuration(f.at(2)));
    return Fields{std::to_string(static_cast<int>(end.code())), std::string(ToStd(end.message())),
                  std::to_string(static_cast<int>(transfer.Poll())),
                  std::to_string(static_cast<int>(transfer.delivery()))};
  }

  absl::StatusOr<Fields> WaitNotification(const Fields& f) {
    absl::StatusOr<Notification> n = node_.agent->WaitNotification(ToDuration(f.at(1)));
    if (!n.ok()) return n.status();
    return Fields{n->payload};
  }

  absl::StatusOr<Fields> Quiesce(const Fields& f) {
    absl::StatusOr<QuiesceResult> result =
        node_.agent->Quiesce({.peer = f.at(1), .regions = {}}, ToDuration(f.at(2)));
    if (!result.ok()) return result.status();
    return Fields{result->quiet ? "1" : "0", std::to_string(static_cast<uint64_t>(result->token)),
                  result->pending};
  }

  absl::StatusOr<Fields> Arrived(const Fields& f) {
    const Shape shape = Shape::FromString(f.at(1));
    const auto received =
        testing::AllArrived(shape, f.at(2) == "1" ? Side::kRemote : Side::kLocal, ToNumber(f.at(3)),
                            node_.memory.bytes().first(shape.memory_bytes()));
    if (!received) return absl::DataLossError(received.message());
    if (!node_.memory.GuardsIntact()) return absl::DataLossError("a guard page was written");
    return Fields{};
  }

  // Lives on when this process dies; not for ever.
  static pid_t ForkSleeper() {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(120);
    for (;;) pause();
  }

  static uint64_t CpuNanoseconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto ns = [](const timeval& t) {
      return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u +
             static_cast<uint64_t>(t.tv_usec) * 1000u;
    };
    return ns(usage.ru_utime) + ns(usage.ru_stime);
  }

  Node node_;
  std::vector<Transfer> transfers_;
};

}  // namespace

void ServeCommands(int fd) {
  CommandServer server;
  while (true) {
    absl::StatusOr<Fields> request = ReceiveFields(fd);
    if (!request.ok()) break;
    server.MeetEngine();
    absl::StatusOr<Fields> result = server.Handle(*request);
    server.MeetEngine();
    Fields answer = {std::to_string(static_cast<int>(result.status().code())),
                     std::string(ToStd(result.status().message()))};
    if (result.ok()) answer.insert(answer.end(), result->begin(), result->end());
    if (!SendFields(fd, answer).ok()) break;
  }
  close(fd);
}

}  // namespace kvxfer::testing
