// What the drivers of the comparison share: one process of a pair, told by lines of JSON on its
// standard input what to do and answering each with one line (benchmarks/compare/driver_pair.py is
// the other end). Every driver runs this same loop, so that contestants differ in nothing else.
// Nothing here comes from kvxfer, which is judged by it.
//
// Thread-safety: one thread calls a Contestant.
#ifndef KVXFER_BENCHMARKS_COMPARE_DRIVERS_DRIVER_H_
#define KVXFER_BENCHMARKS_COMPARE_DRIVERS_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace compare {

using Json = nlohmann::json;

struct Config {
  bool prefill = false;      // else the decode side
  uint64_t bytes = 0;        // of this side's cache
  int cache_fd = -1;         // shared memory of so many bytes, the same for all contestants
  std::string mode{};        // of the driver
  uint64_t threads = 1;      // that move bytes
  uint64_t connections = 1;  // of tcp, shared by the threads
  bool spin = false;         // may burn a core while it waits
};

// Blocks of one transfer: number i goes from block source_ids[i] to block target_ids[i].
struct Blocks {
  uint64_t block_bytes = 0;
  std::vector<uint32_t> source_ids{};
  std::vector<uint32_t> target_ids{};
};

// One side of one contestant.
class Contestant {
 public:
  virtual ~Contestant() = default;
  // This side's cache, Config::bytes of it, every page present: Config::cache_fd, mapped, unless
  // the contestant can only move memory of its own.
  virtual std::span<std::byte> memory() = 0;
  // What the other side must know; called once, before Meet.
  virtual Json Hello() = 0;
  virtual void Meet(const Json& other) = 0;
  // Not timed: what an application does once for a cache of this shape.
  virtual void Prepare(const Blocks& /*blocks*/) {}
  // Prefill: writes the blocks and returns when the decode side has answered. Decode: returns when
  // it knows that every block is here and has answered. Returns the seconds spent on preparing the
  // transfer where that can be told from moving it, else 0.
  virtual double Round(const Blocks& blocks) = 0;
};

// Answers {"error": what} and ends the process with status 1.
[[noreturn]] void Fail(const std::string& what);
// The same with errno's text.
[[noreturn]] void FailErrno(const std::string& what);

using Factory = std::function<std::unique_ptr<Contestant>(const Config&)>;
// The whole program. Exit status 2 for a bad command line, 1 for a failure, 0 when the input ends.
int RunDriver(int argc, char** argv, const Factory& make);

// Seconds on CLOCK_MONOTONIC.
double Now();

}  // namespace compare

#endif  // KVXFER_BENCHMARKS_COMPARE_DRIVERS_DRIVER_H_
