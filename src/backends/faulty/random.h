// The only source of choices of a faulty backend (SplitMix64): equal seeds give equal draws on
// every platform.
#ifndef KVXFER_BACKENDS_FAULTY_RANDOM_H_
#define KVXFER_BACKENDS_FAULTY_RANDOM_H_

#include <cstdint>

namespace kvxfer::faulty {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Below `bound`, which must not be 0. The bias of the remainder does not matter here.
  uint64_t Below(uint64_t bound) { return Next() % bound; }

  // Draws nothing if the answer is known, so that options that are off do not change the other
  // draws.
  bool Chance(double probability) {
    if (probability <= 0) return false;
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_RANDOM_H_
