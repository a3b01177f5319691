// The first byte chooses the frame type of the rest as a body; the whole is also taken as a
// message.
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/frame_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  if (!kvxfer::testing::MessageHolds(message)) std::abort();
  if (size > 0) {
    const auto type = static_cast<kvxfer::FrameType>(
        data[0] % static_cast<uint8_t>(kvxfer::FrameType::kLast) + 1);
    if (!kvxfer::testing::BodyHolds(type, message.subspan(1))) std::abort();
  }
  return 0;
}
