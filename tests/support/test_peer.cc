#include "tests/support/test_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/core/base/strings.h"

namespace kvxfer::testing {
namespace {

std::string Number(uint64_t value) { return std::to_string(value); }
std::string Nanoseconds(Duration value) { return std::to_string(value.count()); }

absl::Status ReadAll(int fd, void* out, size_t bytes) {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = read(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the test peer has closed its socket");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SendFields(int fd, const Fields& fields) {
  std::string wire;
  const auto append = [&wire](uint32_t value) {
    wire.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(static_cast<uint32_t>(fields.size()));
  for (const std::string& field : fields) {
    append(static_cast<uint32_t>(field.size()));
    wire += field;
  }
  for (size_t at = 0; at < wire.size();) {
    const ssize_t n = send(fd, wire.data() + at, wire.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError(ErrnoText("send to the test peer", errno));
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<Fields> ReceiveFields(int fd) {
  uint32_t count = 0;
  if (absl::Status status = ReadAll(fd, &count, sizeof count); !status.ok()) return status;
  Fields fields(count);
  for (std::string& field : fields) {
    uint32_t bytes = 0;
    if (absl::Status status = ReadAll(fd, &bytes, sizeof bytes); !status.ok()) return status;
    field.resize(bytes);
    if (absl::Status status = ReadAll(fd, field.data(), bytes); !status.ok()) return status;
  }
  return fields;
}

KVXFER_CHILD(TestPeerProcess) {
  ServeCommands(std::atoi(arguments.back().c_str()));
  return 0;
}

absl::StatusOr<std::unique_ptr<TestPeer>> TestPeer::Start(Where where) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::InternalError(ErrnoText("socketpair", errno));
  }
  if (where == Where::kThread) {
    std::thread thread(ServeCommands, fds[1]);
    return std::unique_ptr<TestPeer>(new TestPeer(fds[0], ChildProcess(), std::move(thread)));
  }
  absl::StatusOr<ChildProcess> child = ChildProcess::Start("TestPeerProcess", {}, fds[1]);
  close(fds[1]);
  if (!child.ok()) {
    close(fds[0]);
    return child.status();
  }
  return std::unique_ptr<TestPeer>(new TestPeer(fds[0], *std::move(child), std::thread()));
}

TestPeer::TestPeer(int fd, ChildProcess process, std::thread thread)
    : fd_(fd), process_(std::move(process)), thread_(std::move(thread)) {}

TestPeer::~TestPeer() {
  close(fd_);
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<Fields> TestPeer::Call(const Fields& request) {
  if (absl::Status status = SendFields(fd_, request); !status.ok()) return status;
  absl::StatusOr<Fields> answer = ReceiveFields(fd_);
  if (!answer.ok()) return answer;
  const int code = std::atoi(answer->at(0).c_str());
  if (code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(code), ToAbsl(answer->at(1)));
  }
  answer->erase(answer->begin(), answer->begin() + 2);
  return answer;
}

absl::StatusOr<std::string> TestPeer::CallForText(const Fields& request) {
  absl::StatusOr<Fields> answer = Call(request);
  if (!answer.ok()) return answer.status();
  return answer->at(0);
}

absl::StatusOr<uint64_t> TestPeer::CallForNumber(const Fields& request) {
  absl::StatusOr<std::string> text = CallForText(request);
  if (!text.ok()) return text.status();
  return std::strtoull(text->c_str(), nullptr, 10);
}

absl::Status TestPeer::Create(const AgentOptions& options, MemoryType memory, uint64_t bytes,
                              Access access) {
  Fields request = {"create",
                    options.name,
                    absl::StrJoin(options.backends, ","),
                    options.listen,
                    options.advertise,
                    Nanoseconds(options.heartbeat),
                    Nanoseconds(options.suspect_after),
                    Number(static_cast<uint64_t>(memory)),
                    Number(bytes),
                    Number(static_cast<uint64_t>(access))};
  for (const auto& [backend, section] : options.backend) {
    for (const auto& [key, value] : section) {
      request.insert(request.end(), {backend, key, value});
    }
  }
  return Call(request).status();
}

absl::Status TestPeer::DestroyAgent() { return Call({"destroy"}).status(); }
absl::Status TestPeer::RegisterKvCache(const KvSlab& slab) {
  Fields request = {"kv"};
  for (const uint32_t number :
       {slab.model.layers, slab.model.heads, slab.model.k_size, slab.model.v_size,
        slab.shard.tp_rank, slab.shard.tp_size, slab.shard.first_layer, slab.shard.layers,
        slab.blocks, slab.block_tokens}) {
    request.push_back(std::to_string(number));
  }
  return Call(request).status();
}
absl::StatusOr<std::string> TestPeer::Metadata() { return CallForText({"metadata"}); }
absl::StatusOr<std::string> TestPeer::ListenAddress() { return CallForText({"listen"}); }
absl::StatusOr<uint64_t> TestPeer::MemoryAddress() { return CallForNumber({"address"}); }
absl::StatusOr<uint64_t> TestPeer::MemoryDigest() { return CallForNumber({"digest"}); }
absl::Status TestPeer::Clear() { return Call({"clear"}).status(); }
absl::Status TestPeer::CheckNoPoison() { return Call({"no_poison"}).status(); }
absl::Status TestPeer::CheckZero() { return Call({"zero"}).status(); }

absl::StatusOr<std::string> TestPeer::AddPeer(std::string_view metadata) {
  return CallForText({"add_peer", std::string(metadata)});
}

absl::Status TestPeer::Fill(uint64_t pattern_seed) {
  return Call({"fill", Number(pattern_seed)}).status();
}

absl::Status TestPeer::CheckArrived(const Shape& shape, Side side, uint64_t pattern_seed) {
  return Call({"landed", shape.ToString(), side == Side::kRemote ? "1" : "0", Number(pattern_seed)})
      .status();
}

absl::StatusOr<int> TestPeer::Post(bool read, std::string_view peer, uint64_t remote_base,
                                   const Shape& shape, const TransferOptions& options) {
  absl::StatusOr<uint64_t> number =
      CallForNumber({"post", read ? "1" : "0", std::string(peer), Number(remote_base),
                     shape.ToString(), options.notification ? "1" : "0",
                     options.notification.value_or(""), Nanoseconds(options.deadline)});
  if (!number.ok()) return number.status();
  return static_cast<int>(*number);
}

absl::StatusOr<int> TestPeer::PostKv(const KvTransfer& transfer) {
  const KvOptions& options = transfer.options;
  Fields request = {"post_kv",
                    transfer.read ? "1" : "0",
                    transfer.peer,
                    Number(transfer.tokens),
                    Number(transfer.layers),
                    options.request.text,
                    options.lease.text,
                    Nanoseconds(options.lease_wait),
                    Nanoseconds(options.transfer.deadline)};
  for (const uint32_t id : transfer.ids) request.push_back(Number(id));
  absl::StatusOr<uint64_t> number = CallForNumber(request);
  if (!number.ok()) return number.status();
  return static_cast<int>(*number);
}

absl::StatusOr<TestTransferEnd> TestPeer::WaitEnd(int transfer, Duration timeout) {
  absl::StatusOr<Fields> answer = Call({"wait", std::to_string(transfer), Nanoseconds(timeout)});
  if (!answer.ok()) return answer.status();
  return TestTransferEnd{
      .status = absl::Status(static_cast<absl::StatusCode>(std::atoi(answer->at(0).c_str())),
                             ToAbsl(answer->at(1))),
      .state = static_cast<TransferState>(std::atoi(answer->at(2).c_str())),
      .delivery = static_cast<Delivery>(std::atoi(answer->at(3).c_str()))};
}

absl::StatusOr<std::string> TestPeer::WaitNotification(Duration timeout) {
  return CallForText({"notification", Nanoseconds(timeout)});
}

absl::StatusOr<QuiesceResult> TestPeer::Quiesce(std::string_view peer, Duration timeout) {
  absl::StatusOr<Fields> answer = Call({"quiesce", std::string(peer), Nanoseconds(timeout)});
  if (!answer.ok()) return answer.status();
  return QuiesceResult{.quiet = answer->at(0) == "1",
                       .token = QuiesceToken{std::strtoull(answer->at(1).c_str(), nullptr, 10)},
                       .pending = answer->at(2)};
}

absl::StatusOr<pid_t> TestPeer::ForkSleeper() {
  absl::StatusOr<uint64_t> pid = CallForNumber({"fork"});
  if (!pid.ok()) return pid.status();
  return static_cast<pid_t>(*pid);
}

absl::StatusOr<Duration> TestPeer::CpuTime() {
  absl::StatusOr<uint64_t> nanoseconds = CallForNumber({"cpu"});
  if (!nanoseconds.ok()) return nanoseconds.status();
  return Duration(*nanoseconds);
}

absl::Status Introduce(TestPeer& a, TestPeer& b) {
  absl::StatusOr<std::string> of_a = a.Metadata();
  if (!of_a.ok()) return of_a.status();
  absl::StatusOr<std::string> of_b = b.Metadata();
  if (!of_b.ok()) return of_b.status();
  if (auto known = a.AddPeer(*of_b); !known.ok()) return known.status();
  return b.AddPeer(*of_a).status();
}

absl::Status Introduce(Agent& a, TestPeer& b) {
  absl::StatusOr<std::string> of_a = a.Metadata();
  if (!of_a.ok()) return of_a.status();
  absl::StatusOr<std::string> of_b = b.Metadata();
  if (!of_b.ok()) return of_b.status();
  if (auto known = a.AddPeer(*of_b); !known.ok()) return known.status();
  return b.AddPeer(*of_a).status();
}

}  // namespace kvxfer::testing
