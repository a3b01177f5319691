// A request is prefilled by four processes and decoded by two, each with its own KV cache, which
// only kvxfer moves; then one goes on elsewhere in the middle of its generation. The tokens have to
// be those of one process alone. README.md has the picture.
//
//   example_disagg_cpu             exits with 0 where they are the same
//   example_disagg_cpu --corrupt   spoils a block that was moved; 0 where they are not the same

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/disagg_cpu/reference.h"
#include "examples/disagg_cpu/router.h"

namespace {

using Tokens = std::vector<uint32_t>;

constexpr uint64_t kSeed = 11;

// The instances differ in parallelism, tokens of a block, order of the axes, and where V lies.
disagg::InstanceSpec Spec(const char* name, uint32_t tp_size, const disagg::CacheSpec& cache) {
  return {.name = name, .tp_size = tp_size, .cache = cache, .model_seed = kSeed};
}
const disagg::CacheSpec kPrefillCache{.axes = "2BNHD", .blocks = 64, .block_tokens = 16};
const disagg::CacheSpec kDecodeACache{.axes = "BHNC", .blocks = 32, .block_tokens = 32};
const disagg::CacheSpec kDecodeBCache{.axes = "B2HND", .blocks = 64, .block_tokens = 16};

Tokens MakePrompt(uint32_t length) {
  Tokens prompt;
  for (uint32_t i = 0; i < length; ++i) {
    prompt.push_back((i * i * 37 + length * 11 + i / 3) % disagg::kVocabulary);
  }
  return prompt;
}

// The first `most` of them.
void Print(const char* who, std::span<const uint32_t> tokens, size_t most = 64) {
  std::printf("  %-9s", who);
  for (const uint32_t token : tokens.first(std::min(most, tokens.size()))) {
    std::printf(" %u", token);
  }
  std::printf(tokens.size() > most ? " ...\n" : "\n");
}

std::string Text(uint64_t number) { return std::to_string(number); }
double Ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// The tokens of the instances, one after the other, against those of one process alone.
absl::Status Check(const disagg::Request& request, const disagg::Outcome& outcome) {
  auto alone = disagg::GenerateAlone(kSeed, request.prompt, request.count);
  if (!alone.ok()) return alone.status();
  Tokens made = outcome.prefill;
  made.insert(made.end(), outcome.decode_a.begin(), outcome.decode_a.end());
  made.insert(made.end(), outcome.decode_b.begin(), outcome.decode_b.end());
  Print("prompt", request.prompt, 12);
  Print("alone", *alone);
  Print("prefill", outcome.prefill);
  Print("decode A", outcome.decode_a);
  if (!outcome.decode_b.empty()) Print("decode B", outcome.decode_b);
  const bool spoiled = request.spoil != disagg::Spoil::kNothing;
  if ((made == *alone) == spoiled) {
    return absl::DataLossError(
        request.name + (spoiled ? ": a spoiled block changed nothing" : ": not the same tokens"));
  }
  std::printf("  %s\n", spoiled ? "not the same, as a block was spoiled" : "the same");
  return absl::OkStatus();
}

absl::Status RunOne(disagg::Router& router, const disagg::Request& request) {
  auto outcome = router.Generate(request);
  if (!outcome.ok()) return outcome.status();
  const disagg::Moved& a = outcome->to_a;
  const disagg::Moved& b = outcome->to_b;
  std::printf("%s: prompt of %zu tokens; %s bytes to decode A over %s, layer 0 %.2f ms ahead\n",
              request.name.c_str(), request.prompt.size(), Text(a.bytes).c_str(), a.path.c_str(),
              Ms(a.lead_ns));
  if (request.move_after > 0) {
    std::printf(
        "  moved to decode B over %s: %s bytes while A made %s tokens; "
        "then the rest, %s bytes; pause %.2f ms\n",
        b.path.c_str(), Text(b.bytes).c_str(), Text(b.meanwhile).c_str(),
        Text(b.tail_bytes).c_str(), Ms(b.pause_ns));
  }
  return Check(request, *outcome);
}

absl::Status RunAll(disagg::Router& router, disagg::Spoil spoil, const std::string& suffix) {
  // They end in the middle of a block of either side, at its end, or behind it.
  for (const uint32_t length : {1u, 31u, 32u, 77u}) {
    absl::Status status = RunOne(router, {.name = "request-" + std::to_string(length) + suffix,
                                          .prompt = MakePrompt(length),
                                          .count = 24,
                                          .spoil = spoil});
    if (!status.ok()) return status;
  }
  for (const uint32_t length : {45u, 90u}) {
    absl::Status status = RunOne(router, {.name = "moving-" + std::to_string(length) + suffix,
                                          .prompt = MakePrompt(length),
                                          .count = 48,
                                          .move_after = 10,
                                          .spoil = spoil});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Run(bool corrupt) {
  auto router =
      disagg::Router::Start(Spec("prefill", 4, kPrefillCache), Spec("decode-a", 2, kDecodeACache),
                            Spec("decode-b", 1, kDecodeBCache));
  if (!router.ok()) return router.status();
  absl::Status status;
  if (corrupt) {
    status = RunAll(*router, disagg::Spoil::kFirstBlock, ", first block spoiled");
    if (status.ok()) {
      status = RunAll(*router, disagg::Spoil::kLastBlock, ", last block spoiled");
    }
  } else {
    status = RunAll(*router, disagg::Spoil::kNothing, "");
  }
  return status.ok() ? router->Stop() : status;
}

}  // namespace

int main(int argc, char** argv) {
  const bool corrupt = argc == 2 && std::string_view(argv[1]) == "--corrupt";
  if (argc > 1 && !corrupt) {
    std::fprintf(stderr, "usage: %s [--corrupt]\n", argv[0]);
    return 2;
  }
  const absl::Status status = Run(corrupt);
  if (!status.ok()) std::fprintf(stderr, "disagg_cpu: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
