// The rails of one faulty endpoint that go down and come up as the seed says.
//
// An op takes its rail down. Ops that are still held for that rail fail and are never executed. Ops
// that the inner endpoint has go through, but some of their completions are lost: done at the
// target, reported as failed. Then kRailDown is reported and, some time after ReopenRail, kRailUp.
// The target's fence of the rail is a fence of the inner endpoint for a transfer that does not
// exist: it passes behind everything that was sent before.
//
// Thread-safety: none; used by its endpoint.

#ifndef KVXFER_BACKENDS_FAULTY_RAIL_FAULTS_H_
#define KVXFER_BACKENDS_FAULTY_RAIL_FAULTS_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/backends/faulty/options.h"
#include "src/backends/faulty/random.h"
#include "src/core/base/clock.h"

namespace kvxfer::faulty {

class RailFaults {
 public:
  // Both are borrowed.
  RailFaults(const FaultOptions& options, Random* random) : options_(options), random_(random) {}

  bool enabled() const { return options_.rail_down_probability > 0; }
  // All rails are up; on the connecting side some of them come up later.
  void Start(uint32_t rails, bool connecting, Time now);
  bool up(uint32_t rail) const { return rail >= rails_.size() || rails_[rail].state == State::kUp; }

  // Draws whether the rail fails with an op that was just accepted on it.
  bool DrawFailure(uint32_t rail);
  // The inner endpoint has accepted an op, or completed it. OnCompleted returns whether this
  // completion is lost.
  void OnForwarded(uint64_t op, uint32_t rail);
  bool OnCompleted(uint64_t op);
  // The next rail that has failed and of which the inner endpoint has no op left. Each rail once.
  std::optional<uint32_t> TakeDown();

  void Reopen(uint32_t rail, Time now);
  // The next rail that is up again.
  std::optional<uint32_t> TakeUp(Time now);
  // When TakeDown or TakeUp returns a rail. Nothing: not before the inner endpoint reports
  // something.
  std::optional<Time> NextDue() const;

  // The transfer whose fence stands for the next fence of `rail`. Both sides count alike, so they
  // agree.
  uint64_t NextMarker(uint32_t rail);
  static std::optional<uint32_t> RailOfMarker(uint64_t transfer);

 private:
  enum class State : uint8_t { kUp, kEnding, kDown, kReopening };
  struct FaultyRail {
    State state = State::kUp;
    uint32_t inner_ops = 0;
    uint32_t fences = 0;
    Time up_at{};
  };

  Time DrawUpTime(Time now);

  const FaultOptions& options_;
  Random* const random_;
  std::vector<FaultyRail> rails_;
  std::unordered_map<uint64_t, uint32_t> inner_ops_;  // op → rail
};

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_RAIL_FAULTS_H_
