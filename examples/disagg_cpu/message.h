// What the router asks of the workers, and what they answer.
//
// Thread-safety: plain values.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_MESSAGE_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace disagg {

enum class Ask : uint32_t { kConnect, kPrefill, kDecode, kStop };

// Behind the name of a request: the same, moved to another instance.
inline constexpr char kMoved[] = "#moved";

// To see that tokens do depend on what was moved: a block to spoil once it has come.
enum class Spoil : uint32_t { kNothing, kFirstBlock, kLastBlock };

// Where the KV cache of a request goes next.
struct Target {
  std::vector<std::string> group{};  // names of the agents of all ranks; none: nowhere
  std::vector<uint32_t> blocks{};    // the request's block table there
};

struct Command {
  Ask ask = Ask::kStop;
  std::vector<std::string> metadata{};  // kConnect: of the peers
  std::string request{};                // its name
  std::vector<uint32_t> blocks{};       // its block table here
  Target target{};
  std::vector<uint32_t> prompt{};  // kPrefill
  std::string arrives{};           // kDecode: the name under which its KV cache comes
  uint32_t most_tokens = 0;        // kDecode: of the request, prompt included, at the end
  uint32_t move_after = 0;         // kDecode with a target: tokens made here by then
  Spoil spoil = Spoil::kNothing;   // kDecode
};

struct Reply {
  std::string error{};
  std::string metadata{};            // kConnect without peers: the worker's own
  std::vector<uint32_t> tokens{};    // made here
  std::string path{};                // the backend that carried what went to the target
  uint64_t bytes = 0;                // of all; of a request that moved, while it went on
  uint64_t tail_bytes = 0;           // of the rest, while it rested
  uint64_t tokens_meanwhile = 0;     // made while it moved
  uint64_t first_layer_lead_ns = 0;  // the first layer was there before the whole by so much
  uint64_t pause_ns = 0;             // from the last token elsewhere to being ready here
};

std::vector<std::byte> Encode(const Command& command);
std::vector<std::byte> Encode(const Reply& reply);
// Internal: not such a message.
absl::StatusOr<Command> DecodeCommand(std::span<const std::byte> bytes);
absl::StatusOr<Reply> DecodeReply(std::span<const std::byte> bytes);

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_MESSAGE_H_
