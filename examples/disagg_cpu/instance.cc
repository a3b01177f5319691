#include "examples/disagg_cpu/instance.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

namespace disagg {
namespace {

constexpr Milliseconds kSendTimeout{5'000};
constexpr Milliseconds kReplyTimeout{30'000};     // more than a worker waits for anything
constexpr Milliseconds kCommandTimeout{100'000};  // of a worker that has nothing to do
constexpr Milliseconds kStopTimeout{10'000};

// The life of a worker's process, from the fork on.
absl::Status Serve(const InstanceSpec& spec, TensorGroup group, const Channel& router) {
  const std::string name = spec.RankName(group.rank());
  auto worker = Worker::Create(spec, std::move(group));
  while (true) {
    auto bytes = router.Receive(kCommandTimeout);
    if (!bytes.ok()) return bytes.status();
    auto command = DecodeCommand(*bytes);
    if (!command.ok()) return command.status();
    if (command->ask == Ask::kStop) return absl::OkStatus();
    auto reply = worker.ok() ? (*worker)->Run(*command) : worker.status();
    if (!reply.ok()) {
      // At once and by itself: the router may wait for another worker, which fails only later.
      const std::string error = command->request + ": " + reply.status().ToString();
      std::fprintf(stderr, "%s: %s\n", name.c_str(), error.c_str());
      reply = Reply{.error = error};
    }
    if (absl::Status sent = router.Send(Encode(*reply), kSendTimeout); !sent.ok()) return sent;
  }
}

[[noreturn]] void RunChild(const InstanceSpec& spec, TensorGroup group, const Channel& router,
                           pid_t parent) {
  // A router that was gone before the call sends no signal any more.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
  const std::string name = spec.RankName(group.rank());
  const absl::Status status = Serve(spec, std::move(group), router);
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", name.c_str(), status.ToString().c_str());
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

std::string HowEnded(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Instance::Instance(const InstanceSpec& spec) : spec_(spec), free_(spec.cache.blocks) {
  std::iota(free_.begin(), free_.end(), 0);
  std::mt19937 random(spec.cache.blocks + spec.tp_size);
  std::ranges::shuffle(free_, random);
}

Instance::~Instance() {
  for (const Rank& rank : ranks_) {
    if (rank.pid <= 0) continue;
    kill(rank.pid, SIGKILL);
    waitpid(rank.pid, nullptr, 0);
  }
}

absl::StatusOr<Instance> Instance::Start(const InstanceSpec& spec) {
  auto groups = TensorGroup::Make(spec.tp_size);
  if (!groups.ok()) return groups.status();
  Instance instance(spec);
  const pid_t parent = getpid();
  for (uint32_t r = 0; r < spec.tp_size; ++r) {
    auto ends = Channel::MakePair();
    if (!ends.ok()) return ends.status();
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) return absl::InternalError(std::string("fork: ") + std::strerror(errno));
    if (pid == 0) {
      // Ends of others must not stay open here: who waits at them would not see their end.
      TensorGroup own = std::move((*groups)[r]);
      groups->clear();
      ends->first = Channel();
      for (Rank& rank : instance.ranks_) rank = Rank();
      RunChild(spec, std::move(own), ends->second, parent);
    }
    instance.ranks_.push_back({.pid = pid, .channel = std::move(ends->first)});
  }
  return instance;
}

std::vector<std::string> Instance::RankNames() const {
  std::vector<std::string> names;
  for (uint32_t r = 0; r < ranks_.size(); ++r) names.push_back(spec_.RankName(r));
  return names;
}

absl::Status Instance::Named(uint32_t rank, const absl::Status& status) const {
  std::string text = spec_.RankName(rank) + ": " + std::string(status.message());
  int how = 0;
  if (absl::IsUnavailable(status) && waitpid(ranks_[rank].pid, &how, WNOHANG) > 0) {
    text += "; it " + HowEnded(how);
  }
  return absl::Status(status.code(), text);
}

absl::Status Instance::Ask(const Command& command) const {
  const std::vector<std::byte> bytes = Encode(command);
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    absl::Status sent = ranks_[r].channel.Send(bytes, kSendTimeout);
    if (!sent.ok()) return Named(r, sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> Instance::Await() const {
  std::vector<Reply> replies;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    auto bytes = ranks_[r].channel.Receive(kReplyTimeout);
    if (!bytes.ok()) return Named(r, bytes.status());
    auto reply = DecodeReply(*bytes);
    if (!reply.ok()) return Named(r, reply.status());
    if (!reply->error.empty()) return Named(r, absl::InternalError(reply->error));
    replies.push_back(*std::move(reply));
  }
  return replies;
}

absl::StatusOr<std::vector<Reply>> Instance::Run(const Command& command) const {
  if (absl::Status asked = Ask(command); !asked.ok()) return asked;
  return Await();
}

absl::Status Instance::Stop() {
  if (absl::Status asked = Ask({.ask = Ask::kStop}); !asked.ok()) return asked;
  const auto end = std::chrono::steady_clock::now() + kStopTimeout;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    int how = 0;
    pid_t ended = 0;
    while ((ended = waitpid(ranks_[r].pid, &how, WNOHANG)) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        return Named(r, absl::DeadlineExceededError("did not end when it was asked to"));
      }
      std::this_thread::sleep_for(Milliseconds(2));
    }
    ranks_[r].pid = -1;
    if (how != 0) return Named(r, absl::InternalError(HowEnded(how)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> Instance::TakeBlocks(uint32_t tokens) {
  const size_t count = (tokens + spec_.cache.block_tokens - 1) / spec_.cache.block_tokens;
  if (count > free_.size()) {
    return absl::ResourceExhaustedError(spec_.name + " has " + std::to_string(free_.size()) +
                                        " free blocks, not " + std::to_string(count));
  }
  std::vector<uint32_t> blocks(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(count));
  free_.erase(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(count));
  return blocks;
}

void Instance::GiveBack(std::span<const uint32_t> blocks) {
  free_.insert(free_.end(), blocks.begin(), blocks.end());
}

absl::Status Introduce(const Instance& from, const Instance& to) {
  auto theirs = to.Run({.ask = Ask::kConnect, .request = "metadata"});
  if (!theirs.ok()) return theirs.status();
  Command connect{.ask = Ask::kConnect, .request = "metadata"};
  for (const Reply& reply : *theirs) connect.metadata.push_back(reply.metadata);
  return from.Run(connect).status();
}

}  // namespace disagg
