// What the decorator `faulty:<backend>` does to the backend beneath it:
// AgentOptions::backend["faulty"]. Every choice is drawn from `seed`; probabilities are per
// operation or message.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_FAULTY_OPTIONS_H_
#define KVXFER_BACKENDS_FAULTY_OPTIONS_H_

#include <cstdint>

#include "kvxfer/backend_options.h"

namespace kvxfer::faulty {

struct FaultOptions {
  uint64_t seed = 1;
  uint32_t reorder_window = 0;      // hold up to this many ops, immediates, messages; release any
  Duration max_delay{};             // hold each for up to this long
  bool overtake = false;            // messages overtake the data posted before them
  double error_probability = 0;     // an op completes with an error
  double cut_probability = 0;       // the connection is cut
  uint64_t blackhole_after = 0;     // after this many ops and messages nothing passes; 0: never
  uint32_t slow_rail = UINT32_MAX;  // every op of this rail is held for slow_rail_delay
  Duration slow_rail_delay{};
  // An op takes its rail down; some rails start as down. Set it at both sides or at neither.
  double rail_down_probability = 0;
  Duration rail_down_for{};  // at most this long after ReopenRail the rail is up again
};

template <typename Io>
void Fields(Io& io, OptionRef<Io, FaultOptions> options) {
  const auto unit = std::chrono::microseconds(1);
  io.Number("seed", options.seed, 0, UINT64_MAX);
  io.Number("reorder_window", options.reorder_window, 0, UINT32_MAX);
  io.Time("max_delay_us", options.max_delay, unit);
  io.Flag("overtake", options.overtake);
  io.Real("error_probability", options.error_probability, 0, 1);
  io.Real("cut_probability", options.cut_probability, 0, 1);
  io.Number("blackhole_after", options.blackhole_after, 0, UINT64_MAX);
  io.Number("slow_rail", options.slow_rail, 0, UINT32_MAX);
  io.Time("slow_rail_delay_us", options.slow_rail_delay, unit);
  io.Real("rail_down_probability", options.rail_down_probability, 0, 1);
  io.Time("rail_down_for_us", options.rail_down_for, unit);
}

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_OPTIONS_H_
