// How long a GPU copies: learnt from the batches that have ended, to size the next ones and to know
// when to look for their end.
//
// When a batch ended is known as a span of time: after the last look that found it running, and at
// the latest when it was found to have ended. A prediction within that span is as good as can be
// known; another one moves towards the span.
//
// Thread-safety: none; a plain value.

#ifndef KVXFER_CUDA_COPY_RATE_H_
#define KVXFER_CUDA_COPY_RATE_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "src/core/base/clock.h"
#include "src/cuda/copier.h"

namespace kvxfer::cuda {

class CopyRate {
 public:
  // How long a batch should keep the GPU busy.
  static constexpr Duration kBatch = std::chrono::microseconds(150);

  Duration Predict(uint64_t bytes, Reach reach) const {
    const Learnt& learnt = At(reach);
    return FromNanoseconds(learnt.start + static_cast<double>(bytes) / learnt.rate);
  }
  uint64_t BatchBytes(Reach reach) const {
    const double bytes = At(reach).rate * Nanoseconds(kBatch);
    return std::clamp(static_cast<uint64_t>(bytes), kLeastBatch,
                      kMostBatch[static_cast<size_t>(reach)]);
  }

  // A batch of `bytes` that had the GPU for itself took between `least` and `most`.
  void Learn(uint64_t bytes, Reach reach, Duration least, Duration most) {
    Learnt& learnt = At(reach);
    const auto size = static_cast<double>(bytes);
    const double predicted = learnt.start + size / learnt.rate;
    double took = std::clamp(predicted, Nanoseconds(least), std::max(Nanoseconds(most), 1.0));
    if (took == predicted) {
      // The end was somewhere in a long span: look a little earlier the next time.
      if (most - least <= kClose) return;
      took -= took / 16;
    }
    // One batch does not say more than that: something else may have delayed it.
    took = std::clamp(took, predicted / 2, predicted * 1.25);
    if (bytes < kSmall) {
      learnt.start = std::clamp(took - size / learnt.rate, kLeastStart, kMostStart);
    } else {
      learnt.rate =
          std::clamp(size / std::max(took - learnt.start, size / kFastest), kSlowest, kFastest);
    }
  }

 private:
  struct Learnt {
    double rate = 0;  // bytes a nanosecond
    // Nanoseconds from the launch to the first byte, and from the last byte to the word: 12,000
    // with an empty launch on an H200; 350,000 if the GPU has to change to this process's context.
    double start = 0;
  };

  static constexpr Duration kClose = std::chrono::microseconds(20);
  static constexpr uint64_t kSmall = 128 * 1024;  // its time is that of the launch
  static constexpr uint64_t kLeastBatch = 1024 * 1024;
  // By Reach. No more than a peer's link or PCIe moves within a few milliseconds: a batch that has
  // begun cannot be taken back.
  static constexpr std::array<uint64_t, 3> kMostBatch = {uint64_t{512} << 20, uint64_t{128} << 20,
                                                         uint64_t{32} << 20};
  static constexpr double kSlowest = 0.01;
  static constexpr double kFastest = 10000;
  static constexpr double kLeastStart = 1000;
  static constexpr double kMostStart = 2e6;

  static Duration FromNanoseconds(double count) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::nano>(count));
  }
  static double Nanoseconds(Duration duration) {
    return std::chrono::duration<double, std::nano>(duration).count();
  }
  const Learnt& At(Reach reach) const { return learnt_[static_cast<size_t>(reach)]; }
  Learnt& At(Reach reach) { return learnt_[static_cast<size_t>(reach)]; }

  // By Reach. To begin with: an A100's memory, NVLink of that time, PCIe 4.
  std::array<Learnt, 3> learnt_{Learnt{1000, 8000}, Learnt{200, 8000}, Learnt{20, 8000}};
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_RATE_H_
