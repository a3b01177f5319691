// Makes text from another process safe for a log line, an error message or a terminal.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CORE_BASE_TEXT_H_
#define KVXFER_CORE_BASE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace kvxfer {

// The longest text of a peer (why it closed, why it refused) that is kept, in bytes.
inline constexpr size_t kMaxPeerTextBytes = 512;

// Whether `text` is UTF-8 without control characters (C0, DEL, C1), line separators, and characters
// that change the writing direction. A terminal and a log show such text unchanged.
bool IsPrintable(std::string_view text);

// `text` with every byte that is not printable written as \xNN. The result is cut at `max_bytes`; a
// note with the number of omitted bytes, "... (12 more bytes)", is appended beyond that limit.
std::string Printable(std::string_view text, size_t max_bytes);

// `text` with every number that is written as 0x or 0X with more than four digits replaced by
// 0x***. Errors contain addresses and rkeys in this form: an application may see them, a log may
// not.
std::string WithoutAddresses(std::string_view text);

// The text that a peer is sent as the reason for an end: printable, without addresses, cut.
std::string ForPeer(std::string_view text);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_TEXT_H_
