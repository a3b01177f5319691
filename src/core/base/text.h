// Text that another process sent, made fit for a log line, an error text or a terminal.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CORE_BASE_TEXT_H_
#define KVXFER_CORE_BASE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace kvxfer {

// The most that is kept of a text from a peer, in bytes: why it closed, why it refused.
inline constexpr size_t kMaxPeerTextBytes = 512;

// Whether `text` is UTF-8 without control characters (C0, DEL, C1), line separators and characters
// that change the direction of writing: a terminal and a log show it as it is.
bool IsPrintable(std::string_view text);

// `text` with every byte that is not printable as \xNN. No longer than `max_bytes`: what was cut is
// counted behind it, "... (12 more bytes)", which comes on top.
std::string Printable(std::string_view text, size_t max_bytes);

// `text` with every number that is written as 0x or 0X with more than four digits as 0x***:
// addresses and rkeys stand so in errors, which an application may see and a log may not.
std::string WithoutAddresses(std::string_view text);

// What is said to a peer of why something ended: printable, without addresses, cut.
std::string ForPeer(std::string_view text);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_TEXT_H_
