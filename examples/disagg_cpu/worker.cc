#include "examples/disagg_cpu/worker.h"

#include <chrono>
#include <sstream>
#include <utility>

namespace disagg {
namespace {

// For one write, and for the arrival of a request.
constexpr std::chrono::seconds kDeadline{10};
// Longer than the deadline of what is waited for, whose own end says more than a time-out.
constexpr std::chrono::seconds kWait{12};

// CLOCK_MONOTONIC, which the processes of a host share.
uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

absl::Status Annotated(const absl::Status& status, const std::string& what) {
  return status.ok() ? status
                     : absl::Status(status.code(), what + ": " + std::string(status.message()));
}

absl::Status CheckSpace(const PagedRequest& request, size_t tokens) {
  if (tokens <= request.capacity()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::to_string(tokens) + " tokens do not fit into blocks of " +
                                    std::to_string(request.capacity()));
}

}  // namespace

std::string Worker::Handover::ToPayload() const {
  return std::to_string(token) + " " + std::to_string(cached) + " " + std::to_string(made_at_ns);
}

absl::StatusOr<Worker::Handover> Worker::Handover::FromPayload(const std::string& payload) {
  Handover handover;
  std::istringstream text(payload);
  if (text >> handover.token >> handover.cached >> handover.made_at_ns) return handover;
  return absl::InternalError("a notification says \"" + payload + "\"");
}

Worker::Worker(const InstanceSpec& spec, TensorGroup group, PagedCache cache)
    : spec_(spec), model_(spec.model_seed), group_(std::move(group)), cache_(std::move(cache)) {}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const InstanceSpec& spec,
                                                       TensorGroup group) {
  // The cache of a model with other weights is refused by its fingerprint.
  auto cache = PagedCache::Create(spec.cache, group.rank(), group.size(), spec.model_seed);
  if (!cache.ok()) return cache.status();
  auto options = kvxfer::OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->name = spec.RankName(group.rank());
  std::unique_ptr<Worker> worker(new Worker(spec, std::move(group), *std::move(cache)));
  auto agent = kvxfer::Agent::Create(*options);
  if (!agent.ok()) return agent.status();
  if (absl::Status status = worker->cache_.Register(**agent); !status.ok()) return status;
  worker->agent_ = *std::move(agent);
  return worker;
}

absl::StatusOr<Reply> Worker::Run(const Command& command) {
  switch (command.ask) {
    case Ask::kConnect:
      return Connect(command);
    case Ask::kPrefill:
      return Prefill(command);
    case Ask::kDecode:
      return Decode(command);
    case Ask::kStop:
      break;
  }
  return Reply{};
}

// Metadata is a string; how it gets to the peers is the application's business.
absl::StatusOr<Reply> Worker::Connect(const Command& command) {
  for (const std::string& metadata : command.metadata) {
    if (auto peer = agent_->AddPeer(metadata); !peer.ok()) return peer.status();
  }
  auto own = agent_->Metadata();
  if (!own.ok()) return own.status();
  return Reply{.metadata = *std::move(own)};
}

Shard Worker::OwnShard() const {
  Shard shard{.first_kv_head = cache_.heads().first, .kv_heads = cache_.heads().count};
  if (group_.size() > 1) {
    shard.gather = [this](std::span<float> attention) { return group_.AllGather(attention); };
  }
  return shard;
}

// Tokens are counted from the start of the request on both sides, whatever the size of a block
// there.
kvxfer::KvBlocks Worker::BlocksOf(const Command& command, const Range& range) {
  return {.cache = kvxfer::CacheName(kCacheName),
          .local_ids = command.blocks,
          .remote_ids = command.target.blocks,
          .tokens = range.tokens,
          .first_layer = range.first_layer,
          .layers = range.layers};
}

// What this rank has of these layers, to whichever ranks of the target need it.
absl::StatusOr<kvxfer::Transfer> Worker::Write(const Command& command, const Range& range,
                                               const Handover* handover) {
  kvxfer::KvOptions options{.request = kvxfer::RequestName(command.request),
                            .transfer = {.deadline = kDeadline}};
  if (handover != nullptr) options.transfer.notification = handover->ToPayload();
  return agent_->WriteBlocks(command.target.group, BlocksOf(command, range), options);
}

// Each layer leaves as soon as its K and V are there, while its attention is still computed. The
// last one takes the first token along: whichever part comes last, the target is told it when all
// are there.
absl::StatusOr<Reply> Worker::Prefill(const Command& command) {
  PagedRequest request(cache_, command.blocks);
  if (absl::Status space = CheckSpace(request, command.prompt.size()); !space.ok()) return space;
  const auto tokens = static_cast<uint32_t>(command.prompt.size());
  std::vector<kvxfer::Transfer> layers;
  Shard shard = OwnShard();
  shard.stored = [&](uint32_t layer) {
    if (layer + 1 == kLayers) return absl::OkStatus();
    auto transfer = Write(command, {.tokens = tokens, .first_layer = layer, .layers = 1}, nullptr);
    if (!transfer.ok()) return transfer.status();
    layers.push_back(*std::move(transfer));
    return absl::OkStatus();
  };
  auto token = model_.Forward(command.prompt, 0, request, shard);
  if (!token.ok()) return token.status();
  Reply reply{.tokens = {*token}};
  const Handover handover{.token = *token, .cached = tokens, .made_at_ns = NowNs()};
  auto last =
      Write(command, {.tokens = tokens, .first_layer = kLayers - 1, .layers = 1}, &handover);
  if (!last.ok()) return last.status();
  layers.push_back(*std::move(last));
  for (const kvxfer::Transfer& layer : layers) {
    if (absl::Status done = layer.Wait(kWait); !done.ok()) return Annotated(done, "a layer");
    reply.bytes += layer.stats().bytes;
    reply.path = layer.stats().path;
  }
  return reply;
}

absl::StatusOr<Reply> Worker::Decode(const Command& command) {
  PagedRequest request(cache_, command.blocks);
  Reply reply;
  auto at = AwaitRequest(command, reply);
  if (!at.ok()) return at.status();
  if (absl::Status space = CheckSpace(request, command.most_tokens); !space.ok()) return space;
  if (command.spoil != Spoil::kNothing && group_.rank() == 0) {
    const bool last = command.spoil == Spoil::kLastBlock;
    cache_.Spoil(command.blocks[last ? (at->cached - 1) / cache_.block_tokens() : 0]);
  }
  if (absl::Status status = Continue(command, *at, reply); !status.ok()) return status;
  return reply;
}

absl::StatusOr<Worker::Handover> Worker::AwaitRequest(const Command& command, Reply& reply) {
  // Not needed here: a server could begin with the first layers while others are on their way.
  absl::Status layer = agent_->WaitLayers(kvxfer::CacheName(kCacheName),
                                          kvxfer::RequestName(command.arrives), 1, kDeadline);
  if (!layer.ok()) return Annotated(layer, "the first layer of " + command.arrives);
  const uint64_t first_layer_ns = NowNs();
  auto told = AwaitNotification(command.arrives);
  if (!told.ok()) return Annotated(told.status(), command.arrives);
  auto handover = Handover::FromPayload(told->payload);
  if (!handover.ok()) return handover;
  const uint64_t now = NowNs();
  reply.first_layer_lead_ns = now - first_layer_ns;
  reply.pause_ns = now - handover->made_at_ns;
  return handover;
}

// Requests become whole in any order; what is told of others is kept for those who ask.
absl::StatusOr<kvxfer::Notification> Worker::AwaitNotification(const std::string& request) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!told_.contains(request)) {
    auto told = agent_->WaitNotification(end - std::chrono::steady_clock::now());
    if (!told.ok()) return told.status();
    const std::string name = told->request.text;
    told_[name] = *std::move(told);
  }
  return std::move(told_.extract(request).mapped());
}

// Generates; after command.move_after tokens the request begins to move, and generation goes on
// meanwhile. The ranks stop at the same token, when what was there at first, and then what came
// about since, is through at all of them.
absl::Status Worker::Continue(const Command& command, Handover& at, Reply& reply) {
  PagedRequest request(cache_, command.blocks);
  const Shard shard = OwnShard();
  kvxfer::KvMigration move(agent_.get(), command.target.group,
                           kvxfer::RequestName(command.request + kMoved),
                           {.transfer = {.deadline = kDeadline}});
  const bool moves = !command.target.group.empty();
  uint32_t copies = 0;
  while (at.cached + 1 < command.most_tokens) {
    if (moves && reply.tokens.size() == command.move_after) {
      absl::Status copied = move.Copy(BlocksOf(command, {.tokens = at.cached}));
      if (!copied.ok()) return copied;
      copies = 1;
    }
    auto token = model_.Forward({&at.token, 1}, at.cached, request, shard);
    if (!token.ok()) return token.status();
    at = {.token = *token, .cached = at.cached + 1, .made_at_ns = NowNs()};
    reply.tokens.push_back(*token);
    if (copies == 0) continue;
    ++reply.tokens_meanwhile;
    auto through = group_.AllOf(move.CaughtUp());
    if (!through.ok()) return through.status();
    if (!*through) continue;
    if (++copies > 2) break;
    absl::Status copied = move.Copy(BlocksOf(command, {.tokens = at.cached}));
    if (!copied.ok()) return copied;
  }
  if (!moves) return absl::OkStatus();
  auto done = move.Switch(BlocksOf(command, {.tokens = at.cached}), at.ToPayload(), kWait);
  if (!done.ok()) return done.status();
  reply.bytes = done->before;
  reply.tail_bytes = done->bytes;
  reply.path = done->path;
  return absl::OkStatus();
}

}  // namespace disagg
