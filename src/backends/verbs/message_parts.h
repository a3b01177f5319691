// How messages go over a control pair: each SEND is a head, and at most one part of a message
// behind it. All parts of a message but the last say that there are more; parts of two messages do
// not mix.
//
// Thread-safety: plain values, and a class that the agent's driver calls only.

#ifndef KVXFER_BACKENDS_VERBS_MESSAGE_PARTS_H_
#define KVXFER_BACKENDS_VERBS_MESSAGE_PARTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/send_credit.h"

namespace kvxfer::verbs {

// Bytes of one SEND, head and part; each receive takes so many. A message of 4 KiB fits into one:
// a peer that says little has a receive for one part. More would be held by every idle peer.
inline constexpr size_t kMessageBufferBytes = 4096 + 64;
inline constexpr size_t kPartHeadBytes = 16;
inline constexpr size_t kMaxPartBytes = kMessageBufferBytes - kPartHeadBytes;

enum class PartKind : uint8_t {
  kCredit,  // no part
  kMore,    // a part that others follow
  kLast,
};

struct PartHead {
  PartKind kind = PartKind::kCredit;
  bool waited = false;  // of SendCredit::OnPart
  uint32_t number = 0;  // of the part; counted from 0 for each direction
  SendCredit::Report report{};
};

std::array<std::byte, kPartHeadBytes> Encode(const PartHead& head);
// `bytes`: the whole SEND.
absl::StatusOr<PartHead> DecodePartHead(std::span<const std::byte> bytes);

// Joins the parts of one direction.
class PartJoiner {
 public:
  explicit PartJoiner(size_t max_message) : max_message_(max_message) {}

  // True: a message is whole, and TakeMessage returns it. Invalid: it is too long.
  absl::StatusOr<bool> Add(std::span<const std::byte> part, bool more);
  std::string TakeMessage() { return std::exchange(joined_, {}); }

 private:
  const size_t max_message_;
  std::string joined_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_MESSAGE_PARTS_H_
