#include "src/cli/common/session_note.h"

#include <array>

namespace kvxfer::cli {
namespace {

constexpr size_t kWords = 3;

}  // namespace

std::string SessionNote::Encode() const {
  std::string payload;
  for (uint64_t value : std::array{session, sequence, static_cast<uint64_t>(posted_ns)}) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      payload += static_cast<char>(static_cast<uint8_t>(value >> shift));
    }
  }
  return payload;
}

std::optional<SessionNote> SessionNote::Decode(std::string_view payload) {
  if (payload.size() != kWords * sizeof(uint64_t)) return std::nullopt;
  std::array<uint64_t, kWords> words{};
  for (size_t word = 0; word < kWords; ++word) {
    for (size_t i = 8; i-- > 0;) {
      words[word] = words[word] << 8 | static_cast<uint8_t>(payload[word * 8 + i]);
    }
  }
  return SessionNote{
      .session = words[0], .sequence = words[1], .posted_ns = static_cast<int64_t>(words[2])};
}

}  // namespace kvxfer::cli
