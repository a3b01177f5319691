#include "src/core/plan/path_choice.h"

#include <numeric>
#include <utility>

namespace kvxfer {
namespace {

constexpr int kOneIn = 4;  // weight of a new sample: 1 / kOneIn

template <typename T>
void Blend(T& known, T sample) {
  known = known == T{} ? sample : known + (sample - known) / kOneIn;
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void PathMeasure::OnPosted(uint64_t bytes, Time now) {
  if (in_flight_ == 0) StartSample(now);
  in_flight_ += bytes;
}

void PathMeasure::OnCompleted(uint64_t bytes, Time now, bool measured) {
  in_flight_ -= bytes;
  if (!measured) return StartSample(now);  // its time is unusable, so start a new sample
  sampled_ += bytes;
  if (sampled_ < kSpeedSample || now <= since_) return;
  // The old figure has expired; the new sample starts a new average.
  if (At(now).bytes_per_second == 0) figures_.bytes_per_second = 0;
  Blend(figures_.bytes_per_second, static_cast<double>(sampled_) / Seconds(now - since_));
  speed_at_ = now;
  StartSample(now);
}

void PathMeasure::StartSample(Time now) {
  sampled_ = 0;
  since_ = now;
}

void PathMeasure::OnSmallDone(Duration took, Time now) {
  if (At(now).latency == Duration::zero()) figures_.latency = {};
  Blend(figures_.latency, took);
  latency_at_ = now;
}

PathFigures PathMeasure::At(Time now) const {
  PathFigures figures = figures_;
  if (now - speed_at_ > kLately) figures.bytes_per_second = 0;
  if (now - latency_at_ > kLately) figures.latency = {};
  return figures;
}

// Compares only the figures that are known for both paths; without any, both estimates are 0 and
// the result is false.
bool ClearlyFaster(const PathFigures& other, const PathFigures& path, uint64_t bytes) {
  double theirs = 0;
  double ours = 0;
  if (other.latency > Duration::zero() && path.latency > Duration::zero()) {
    theirs += Seconds(other.latency);
    ours += Seconds(path.latency);
  }
  if (other.bytes_per_second > 0 && path.bytes_per_second > 0) {
    theirs += static_cast<double>(bytes) / other.bytes_per_second;
    ours += static_cast<double>(bytes) / path.bytes_per_second;
  }
  return theirs * kClearly < ours;
}

PathOrder OrderPaths(std::span<const PathFigures> paths, uint64_t bytes) {
  PathOrder order(paths.size());
  // An insertion sort that moves a path forward only past paths that it clearly beats. The
  // configured order is kept in all other cases.
  std::iota(order.begin(), order.end(), uint8_t{0});
  for (size_t i = 1; i < order.size(); ++i) {
    for (size_t at = i; at > 0; --at) {
      if (!ClearlyFaster(paths[order[at]], paths[order[at - 1]], bytes)) break;
      std::swap(order[at], order[at - 1]);
    }
  }
  return order;
}

}  // namespace kvxfer
