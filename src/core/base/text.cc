#include "src/core/base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace kvxfer {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

// Decodes the first character of `text`, which must not be empty. Rejects what is not UTF-8 (RFC
// 3629): overlong forms, surrogates, and code points beyond U+10FFFF.
Character FirstOf(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3Fu);
  }
  // The smallest code point of each length; a smaller one is an overlong form.
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {};
  return {code, bytes};
}

bool IsShownAsIs(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code <= 0x9F)) return false;  // control characters
  if (code == 0x2028 || code == 0x2029) return false;               // line, paragraph separator
  // Characters that change the writing direction could make a line read differently from its bytes.
  const bool direction = code == 0x061C || code == 0x200E || code == 0x200F ||
                         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return !direction;
}

// The size of the first character if it may be shown as it is, else 0.
size_t ShownBytes(std::string_view text) {
  const Character first = FirstOf(text);
  return first.bytes > 0 && IsShownAsIs(first.code) ? first.bytes : 0;
}

// The position of the first "0x" or "0X"; npos if there is none.
size_t FindHex(std::string_view text) {
  size_t x = text.find_first_of("xX", 1);
  while (x != std::string_view::npos && text[x - 1] != '0') x = text.find_first_of("xX", x + 1);
  return x == std::string_view::npos ? x : x - 1;
}

}  // namespace

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const size_t shown = ShownBytes(text);
    if (shown == 0) return false;
    text.remove_prefix(shown);
  }
  return true;
}

std::string Printable(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr size_t kEscapedBytes = 4;
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t shown = ShownBytes(text.substr(at));
    if (out.size() + (shown > 0 ? shown : kEscapedBytes) > max_bytes) break;
    if (shown > 0) {
      out += text.substr(at, shown);
      at += shown;
    } else {
      const auto byte = static_cast<uint8_t>(text[at++]);
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 0xF];
    }
  }
  if (at < text.size()) absl::StrAppend(&out, "... (", text.size() - at, " more bytes)");
  return out;
}

std::string WithoutAddresses(std::string_view text) {
  constexpr size_t kPrefixBytes = 2;
  constexpr size_t kShortDigits = 4;  // device status codes and P_Keys are this short
  std::string out;
  for (size_t at = FindHex(text); at != std::string_view::npos; at = FindHex(text)) {
    const size_t digits = at + kPrefixBytes;
    const size_t end =
        std::min(text.find_first_not_of("0123456789abcdefABCDEF", digits), text.size());
    out += text.substr(0, digits);
    const bool is_long = end - digits > kShortDigits;
    if (is_long) out += "***";
    text.remove_prefix(is_long ? end : digits);
  }
  return out.append(text);
}

std::string ForPeer(std::string_view text) {
  return Printable(WithoutAddresses(text), kMaxPeerTextBytes);
}

}  // namespace kvxfer
