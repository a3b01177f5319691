// What is measured against what: UCX's own put, and kvxfer's agents over the backend `ucx`. Each is
// a Side in either process; the initiator's writes blocks into the target's memory.
//
// Thread-safety: none. What fails ends the process with a line on stderr.

#ifndef KVXFER_BENCHMARKS_UCX_SIDE_H_
#define KVXFER_BENCHMARKS_UCX_SIDE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ucx_bench {

[[noreturn]] void Fail(const std::string& why);

// The two processes' words to each other, one at a time.
void Tell(int fd, const std::string& words);
std::string Hear(int fd);

struct Setup {
  std::string tls;
  std::string net_devices;
  std::span<std::byte> memory;  // the same size in both processes
  int fd;                       // to the other process
};

// One round: `volume` bytes in blocks of `block`, from places in turn to places in another order.
struct Round {
  uint64_t block = 0;
  uint64_t in_flight = 0;  // blocks
  uint64_t volume = 0;

  uint64_t places(uint64_t memory_bytes) const { return memory_bytes / block; }
  // Of block `i`; 7919 is prime and no divisor of a number of places that is a power of two.
  static uint64_t Source(uint64_t i, uint64_t places) { return i % places; }
  static uint64_t Target(uint64_t i, uint64_t places) { return i * 7919 % places; }
};

class Side {
 public:
  virtual ~Side() = default;
  // The initiator's part; returns when the target is known to have all bytes.
  virtual void Write(const Round& round) = 0;
  // The target's part: until the initiator's is over.
  virtual void Serve() = 0;
};

// Both processes make them in the same order.
std::unique_ptr<Side> MakeRawSide(const Setup& setup);
std::unique_ptr<Side> MakeAgentSide(const Setup& setup, bool initiator);

}  // namespace ucx_bench

#endif  // KVXFER_BENCHMARKS_UCX_SIDE_H_
