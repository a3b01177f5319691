// `kvxfer demo-worker`: the decode side of the demo. It assigns its blocks to requests, and checks
// every byte of a request when it is notified that the request has arrived.

#include <map>
#include <utility>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/stats.h"
#include "src/cli/demo/demo.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// The agent and the cache must outlive it. Thread-safety: one thread, which drives the agent while
// it waits.
class Decode {
 public:
  Decode(const DemoConfig& config, Agent& agent, const KvCache& cache, std::string peer)
      : config_(config),
        agent_(agent),
        cache_(cache),
        peer_(std::move(peer)),
        allocator_(cache.shape().blocks, TargetSeed(config.seed)) {}

  // Returns when every request was checked and the prefill side was notified of each result.
  absl::Status Run(const Channel& parent) {
    Time last_step = Now();
    for (uint64_t done = 0; done < config_.requests;) {
      if (absl::Status s = AssignWhatFits(); !s.ok()) return s;
      const auto notification = agent_.WaitNotification(std::chrono::milliseconds(100));
      if (notification.ok()) {
        if (absl::Status s = OnArrived(*notification); !s.ok()) return s;
        last_step = Now();
        ++done;
      } else if (!IsTimedOut(notification.status())) {
        return notification.status();
      }
      if (parent.Closed()) return absl::UnavailableError("the prefill process is gone");
      if (Now() - last_step > config_.timeout) {
        return absl::DeadlineExceededError(
            absl::StrCat("nothing arrived after ", done, " of ", config_.requests, " requests"));
      }
    }
    return last_word_.Wait(config_.timeout);
  }

 private:
  // Requests wait for blocks in their order. A request gets random ones of the free blocks.
  absl::Status AssignWhatFits() {
    while (next_request_ < config_.requests) {
      std::optional<std::vector<uint32_t>> blocks =
          allocator_.Allocate(config_.blocks_per_request());
      if (!blocks) break;
      DemoMessage message{.kind = DemoMessage::Kind::kAssign, .request = next_request_++};
      message.blocks = *blocks;
      tables_[message.request] = std::move(*blocks);
      if (absl::Status s = Tell(message); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status OnArrived(const Notification& notification) {
    const absl::StatusOr<DemoMessage> message = DemoMessage::Decode(notification.payload);
    if (!message.ok()) return message.status();
    const auto table = tables_.find(message->request);
    if (message->kind != DemoMessage::Kind::kArrived || table == tables_.end()) {
      return absl::InternalError(
          absl::StrCat("request ", message->request, " arrived twice or was never assigned"));
    }
    DemoMessage released{.kind = DemoMessage::Kind::kReleased, .request = message->request};
    absl::Status check = message->blocks == table->second
                             ? cache_.CheckRequest(message->request, table->second, config_.seed)
                             : absl::DataLossError("the block table differs from the assigned one");
    released.error = std::string(check.message());
    allocator_.Free(table->second);
    tables_.erase(table);
    return Tell(released);
  }

  // Does not wait: notifications arrive in the order of posting, so that when the last one has
  // ended, all have.
  absl::Status Tell(const DemoMessage& message) {
    TransferOptions options;
    options.deadline = config_.timeout;
    if (absl::Status s = Into(last_word_, agent_.Notify(peer_, message.Encode(), options)); !s.ok())
      return s;
    return absl::OkStatus();
  }

  const DemoConfig& config_;
  Agent& agent_;
  const KvCache& cache_;
  const std::string peer_;
  BlockAllocator allocator_;
  std::map<uint32_t, std::vector<uint32_t>> tables_;  // of requests that have blocks
  uint32_t next_request_ = 0;
  Transfer last_word_;
};

// Answers the parent's hello, which has its metadata and the parameters of the run, with the
// metadata and the regions of this side.
absl::StatusOr<std::string> AnswerHello(Channel& parent, const Json& hello, Agent& agent,
                                        const KvCache& cache) {
  absl::StatusOr<std::string> peer = AddPeerOf(hello, agent);
  if (!peer.ok()) return peer;
  const absl::StatusOr<std::string> ours = agent.Metadata();
  if (!ours.ok()) return ours.status();
  const Json answer = {{"metadata", ToHex(*ours)}, {"regions", ToJson(cache.regions())}};
  if (absl::Status s = parent.Send(answer); !s.ok()) return s;
  return peer;
}

absl::Status RunWorker(Channel& parent) {
  const absl::StatusOr<Json> hello = parent.Receive(std::chrono::seconds(30));
  if (!hello.ok()) return hello.status();
  const absl::StatusOr<DemoConfig> config = DemoConfigFromJson(*hello);
  if (!config.ok()) return config.status();
  const absl::StatusOr<KvCacheShape> shape = DemoCacheShape(*config);
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<KvCache> cache = KvCache::Create(*shape);
  if (!cache.ok()) return cache.status();
  const absl::StatusOr<std::unique_ptr<Agent>> agent = MakeAgent({.role = "decode",
                                                                  .backends = config->backend,
                                                                  .own_port = true,
                                                                  .fault_seed = config->seed + 1});
  if (!agent.ok()) return agent.status();
  if (auto s = cache->RegisterWith(**agent, Access::kRemoteWrite); !s.ok()) return s.status();
  absl::StatusOr<std::string> peer = AnswerHello(parent, *hello, **agent, *cache);
  if (!peer.ok()) return peer.status();

  Decode decode(*config, **agent, *cache, std::move(*peer));
  if (absl::Status s = decode.Run(parent); !s.ok()) return s;
  // The prefill side sends "finish" once every transfer has ended there too.
  if (absl::StatusOr<Json> finish = parent.Receive(config->timeout); !finish.ok()) {
    return finish.status();
  }
  ExpectPeersToLeave();
  return parent.Send(
      {{"guards", std::string(cache->CheckGuards().message())}, {"cpu_seconds", CpuSeconds()}});
}

absl::Status DemoWorker() {
  absl::StatusOr<Channel> parent = ChannelToParent();
  if (!parent.ok()) return parent.status();
  absl::Status status = RunWorker(*parent);
  // Only the parent reports to the user.
  if (!status.ok()) (void)parent->Send(ErrorAnswer(status));
  return absl::OkStatus();
}

}  // namespace

void AddDemoWorker(CLI::App& app, Action& action) {
  AddCommand(app, action, "demo-worker", "The decode process of demo", DemoWorker)->group("");
}

}  // namespace kvxfer::cli
