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

absl::Status CheckRoom(const PagedRequest& request, size_t tokens) {
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

// What this rank has of the request, to whichever ranks of the target need it. Tokens are counted
// from the start of the request on both sides, whatever the size of a block there.
absl::StatusOr<kvxfer::Transfer> Worker::Write(const Command& command, const Range& range,
                                               const std::string& name, const Handover* handover) {
  kvxfer::KvOptions options{.request = name, .deadline = kDeadline};
  if (handover != nullptr) options.notification = handover->ToPayload();
  return agent_->WriteBlocks(command.target.group,
                             {.cache = kCacheName,
                              .local_ids = command.blocks,
                              .remote_ids = command.target.blocks,
                              .local_first_token = range.first_token,
                              .remote_first_token = range.first_token,
                              .tokens = range.tokens,
                              .first_layer = range.first_layer,
                              .layers = range.layers},
                             options);
}

// Each layer leaves as soon as its K and V are there, while its attention is still computed. The
// last one takes the first token along: whichever part comes last, the target is told it when all
// are there.
absl::StatusOr<Reply> Worker::Prefill(const Command& command) {
  PagedRequest request(cache_, command.blocks);
  if (absl::Status room = CheckRoom(request, command.prompt.size()); !room.ok()) return room;
  const auto tokens = static_cast<uint32_t>(command.prompt.size());
  std::vector<kvxfer::Transfer> layers;
  Shard shard = OwnShard();
  shard.stored = [&](uint32_t layer) {
    if (layer + 1 == kLayers) return absl::OkStatus();
    auto transfer = Write(command, {.tokens = tokens, .first_layer = layer, .layers = 1},
                          command.request, nullptr);
    if (!transfer.ok()) return transfer.status();
    layers.push_back(*std::move(transfer));
    return absl::OkStatus();
  };
  auto token = model_.Forward(command.prompt, 0, request, shard);
  if (!token.ok()) return token.status();
  Reply reply{.tokens = {*token}};
  const Handover handover{.token = *token, .cached = tokens, .made_at_ns = NowNs()};
  auto last = Write(command, {.tokens = tokens, .first_layer = kLayers - 1, .layers = 1},
                    command.request, &handover);
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
  if (absl::Status room = CheckRoom(request, command.most_tokens); !room.ok()) return room;
  if (command.spoil != Spoil::kNothing && group_.rank() == 0) {
    const bool last = command.spoil == Spoil::kLastBlock;
    cache_.Spoil(command.blocks[last ? (at->cached - 1) / cache_.block_tokens() : 0]);
  }
  if (absl::Status status = Continue(command, *at, reply); !status.ok()) return status;
  return reply;
}

// The last name is that of the write with the handover.
absl::StatusOr<Worker::Handover> Worker::AwaitRequest(const Command& command, Reply& reply) {
  // Not needed here: a server could begin with the first layers while others are on their way.
  const std::string& first = command.arrives.front();
  absl::Status layer = agent_->WaitLayers(kCacheName, first, 1, kDeadline);
  if (!layer.ok()) return Annotated(layer, "the first layer of " + first);
  const uint64_t first_layer_ns = NowNs();
  std::string payload;
  for (const std::string& name : command.arrives) {
    auto told = AwaitNotification(name);
    if (!told.ok()) return Annotated(told.status(), name);
    payload = told->payload;
  }
  auto handover = Handover::FromPayload(payload);
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
    const std::string name = told->request;
    told_[name] = *std::move(told);
  }
  return std::move(told_.extract(request).mapped());
}

// Generates; after command.move_after tokens the request begins to move, full blocks first, and
// generation goes on meanwhile. The ranks stop at the same token, when all of them are through.
absl::Status Worker::Continue(const Command& command, Handover& at, Reply& reply) {
  PagedRequest request(cache_, command.blocks);
  const Shard shard = OwnShard();
  const bool moves = !command.target.group.empty();
  uint32_t moved = 0;  // tokens, in full blocks
  kvxfer::Transfer bulk;
  bool through = false;
  while (at.cached + 1 < command.most_tokens && !through) {
    if (moves && reply.tokens.size() == command.move_after) {
      // Nothing is written into a full block any more, so that it can be read meanwhile.
      moved = at.cached - at.cached % cache_.block_tokens();
      auto transfer = Write(command, {.tokens = moved}, command.request + kBulk, nullptr);
      if (!transfer.ok()) return transfer.status();
      bulk = *std::move(transfer);
    }
    auto token = model_.Forward({&at.token, 1}, at.cached, request, shard);
    if (!token.ok()) return token.status();
    at = {.token = *token, .cached = at.cached + 1, .made_at_ns = NowNs()};
    reply.tokens.push_back(*token);
    if (moved == 0) continue;
    ++reply.tokens_meanwhile;
    auto all = group_.AllOf(bulk.Poll() != kvxfer::TransferState::kActive);
    if (!all.ok()) return all.status();
    through = *all;
  }
  if (!moves) return absl::OkStatus();
  if (moved == 0) return absl::InvalidArgumentError("no full block when the request was to move");
  if (absl::Status done = bulk.Wait(kWait); !done.ok()) return Annotated(done, kBulk);
  reply.bytes = bulk.stats().bytes;
  return MoveTail(command, at, moved, reply);
}

// A name stands for the same tokens in all parts of a request, so that bulk and tail have one each.
// Who tries a write again, after a failure, takes another one.
absl::Status Worker::MoveTail(const Command& command, const Handover& at, uint32_t first_token,
                              Reply& reply) {
  const Range range{.first_token = first_token, .tokens = at.cached - first_token};
  auto tail = Write(command, range, command.request + kTail, &at);
  if (!tail.ok()) return tail.status();
  if (absl::Status done = tail->Wait(kWait); !done.ok()) return Annotated(done, kTail);
  reply.tail_bytes = tail->stats().bytes;
  reply.path = tail->stats().path;
  return absl::OkStatus();
}

}  // namespace disagg
