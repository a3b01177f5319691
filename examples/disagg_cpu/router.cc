#include "examples/disagg_cpu/router.h"

#include <algorithm>
#include <utility>

namespace disagg {
namespace {

// Of a request that moves, so many tokens are left for decode B at least.
constexpr uint32_t kLeftForB = 8;

uint32_t PromptTokens(const Request& request) {
  return static_cast<uint32_t>(request.prompt.size());
}

// Each rank of an instance makes all tokens, and the same ones.
absl::StatusOr<std::vector<uint32_t>> TokensOf(const Instance& instance,
                                               const std::vector<Reply>& replies) {
  for (const Reply& reply : replies) {
    if (reply.tokens == replies.front().tokens) continue;
    return absl::InternalError("the ranks of " + instance.spec().name + " made different tokens");
  }
  return replies.front().tokens;
}

Moved MovedBetween(const std::vector<Reply>& from, const std::vector<Reply>& to) {
  Moved moved{.meanwhile = from.front().tokens_meanwhile, .path = from.front().path};
  for (const Reply& reply : from) {
    moved.bytes += reply.bytes;
    moved.tail_bytes += reply.tail_bytes;
  }
  for (const Reply& reply : to) {
    moved.lead_ns = std::max(moved.lead_ns, reply.first_layer_lead_ns);
    moved.pause_ns = std::max(moved.pause_ns, reply.pause_ns);
  }
  return moved;
}

}  // namespace

absl::StatusOr<Router> Router::Start(const InstanceSpec& prefill, const InstanceSpec& decode_a,
                                     const InstanceSpec& decode_b) {
  auto p = Instance::Start(prefill);
  if (!p.ok()) return p.status();
  auto a = Instance::Start(decode_a);
  if (!a.ok()) return a.status();
  auto b = Instance::Start(decode_b);
  if (!b.ok()) return b.status();
  if (absl::Status known = Introduce(*p, *a); !known.ok()) return known;
  if (absl::Status known = Introduce(*a, *b); !known.ok()) return known;
  return Router(*std::move(p), *std::move(a), *std::move(b));
}

// For the prompt and all that is made of it, before anything moves: so the table is known to those
// who write into the blocks.
absl::StatusOr<Router::Blocks> Router::TakeBlocks(const Request& request) {
  const uint32_t most = PromptTokens(request) + request.count;
  auto prefill = prefill_.TakeBlocks(PromptTokens(request));
  if (!prefill.ok()) return prefill.status();
  auto a = decode_a_.TakeBlocks(most);
  if (!a.ok()) return a.status();
  auto b = decode_b_.TakeBlocks(request.move_after > 0 ? most : 0);
  if (!b.ok()) return b.status();
  return Blocks{*std::move(prefill), *std::move(a), *std::move(b)};
}

// Decode is asked before prefill begins, and waits for what kvxfer says of the request.
absl::Status Router::AskDecode(const Request& request, const Blocks& blocks) const {
  const uint32_t most = PromptTokens(request) + request.count;
  Command decode{.ask = Ask::kDecode,
                 .request = request.name,
                 .blocks = blocks.decode_a,
                 .arrives = request.name,
                 .most_tokens = most};
  if (request.move_after == 0) {
    decode.spoil = request.spoil;
    return decode_a_.Ask(decode);
  }
  decode.target = {.group = decode_b_.RankNames(), .blocks = blocks.decode_b};
  decode.move_after = request.move_after;
  decode.most_tokens = most - kLeftForB;
  if (absl::Status asked = decode_a_.Ask(decode); !asked.ok()) return asked;
  return decode_b_.Ask({.ask = Ask::kDecode,
                        .request = request.name,
                        .blocks = blocks.decode_b,
                        .arrives = request.name + kMoved,
                        .most_tokens = most,
                        .spoil = request.spoil});
}

absl::StatusOr<Outcome> Router::Generate(const Request& request) {
  auto blocks = TakeBlocks(request);
  if (!blocks.ok()) return blocks.status();
  if (absl::Status asked = AskDecode(request, *blocks); !asked.ok()) return asked;
  auto at_prefill =
      prefill_.Run({.ask = Ask::kPrefill,
                    .request = request.name,
                    .blocks = blocks->prefill,
                    .target = {.group = decode_a_.RankNames(), .blocks = blocks->decode_a},
                    .prompt = request.prompt});
  if (!at_prefill.ok()) return at_prefill.status();
  auto at_a = decode_a_.Await();
  if (!at_a.ok()) return at_a.status();

  Outcome outcome{.to_a = MovedBetween(*at_prefill, *at_a)};
  auto tokens = TokensOf(prefill_, *at_prefill);
  if (!tokens.ok()) return tokens.status();
  outcome.prefill = *std::move(tokens);
  if (!(tokens = TokensOf(decode_a_, *at_a)).ok()) return tokens.status();
  outcome.decode_a = *std::move(tokens);
  if (request.move_after > 0) {
    auto at_b = decode_b_.Await();
    if (!at_b.ok()) return at_b.status();
    outcome.to_b = MovedBetween(*at_a, *at_b);
    if (!(tokens = TokensOf(decode_b_, *at_b)).ok()) return tokens.status();
    outcome.decode_b = *std::move(tokens);
  }
  // Every write has ended at who wrote, so nothing lands in these blocks any more.
  prefill_.GiveBack(blocks->prefill);
  decode_a_.GiveBack(blocks->decode_a);
  decode_b_.GiveBack(blocks->decode_b);
  return outcome;
}

absl::Status Router::Stop() {
  absl::Status status = prefill_.Stop();
  status.Update(decode_a_.Stop());
  status.Update(decode_b_.Stop());
  return status;
}

}  // namespace disagg
