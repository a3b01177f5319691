// Sends requests through the instances: prefill, decode, and for those that are to move another
// decode. It gives each request its block tables, and sees no byte of a KV cache.
//
// Thread-safety: one thread, one request at a time.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_ROUTER_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_ROUTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/disagg_cpu/instance.h"

namespace disagg {

struct Request {
  std::string name{};  // of this attempt; never used again
  std::vector<uint32_t> prompt{};
  uint32_t count = 0;             // tokens to make
  uint32_t move_after = 0;        // tokens made by decode A when it begins to move; 0: it stays
  Spoil spoil = Spoil::kNothing;  // after its last move
};

struct Moved {
  uint64_t bytes = 0;       // all of them; of a request that moved, while it went on
  uint64_t tail_bytes = 0;  // of the rest, while it rested
  uint64_t meanwhile = 0;   // tokens made by the old owner while it moved
  uint64_t lead_ns = 0;     // from layer 0 being there to all of it being there
  uint64_t pause_ns = 0;    // from the old owner's last token to the new owner being ready
  std::string path{};       // the backend that carried it
};

struct Outcome {
  std::vector<uint32_t> prefill{};  // tokens made there
  std::vector<uint32_t> decode_a{};
  std::vector<uint32_t> decode_b{};
  Moved to_a{};
  Moved to_b{};
};

class Router {
 public:
  // All instances are of one model.
  static absl::StatusOr<Router> Start(const InstanceSpec& prefill, const InstanceSpec& decode_a,
                                      const InstanceSpec& decode_b);

  absl::StatusOr<Outcome> Generate(const Request& request);
  absl::Status Stop();

 private:
  // The block tables of one request.
  struct Blocks {
    std::vector<uint32_t> prefill{};
    std::vector<uint32_t> decode_a{};
    std::vector<uint32_t> decode_b{};
  };

  Router(Instance prefill, Instance decode_a, Instance decode_b)
      : prefill_(std::move(prefill)),
        decode_a_(std::move(decode_a)),
        decode_b_(std::move(decode_b)) {}

  absl::StatusOr<Blocks> TakeBlocks(const Request& request);
  absl::Status AskDecode(const Request& request, const Blocks& blocks) const;

  Instance prefill_;
  Instance decode_a_;
  Instance decode_b_;
};

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_ROUTER_H_
