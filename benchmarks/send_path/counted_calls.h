// Counts the system calls of this process with which an agent waits, wakes, moves bytes and sets
// timers, and how often its threads slept. A program that links this has the C library's functions
// of those names wrapped. Calls that the C library makes by itself, such as those of a lock that
// waits, are not seen.
//
// Thread-safety: all threads.

#ifndef KVXFER_BENCHMARKS_SEND_PATH_COUNTED_CALLS_H_
#define KVXFER_BENCHMARKS_SEND_PATH_COUNTED_CALLS_H_

#include <cstdint>
#include <map>
#include <string>

namespace kvxfer::testing {

// By name, since the process began; those that were never called are not there. "other": by number,
// with syscall(). Some are no calls:
// "time-outs": how often one of epoll was set
// "sleeps": how often a thread gave up its CPU to wait, which is how often one was woken
// "doorbells": ibv_post_send over soft-RoCE, where it is a command to the kernel. Other devices
//   ring them in memory, which is not counted.
// kTcpSegments: what this host has sent since it booted, whoever it was; missing where the kernel
//   does not say
std::map<std::string, uint64_t> CountedCalls();
inline constexpr const char* kTcpSegments = "tcp_segments";

}  // namespace kvxfer::testing

#endif  // KVXFER_BENCHMARKS_SEND_PATH_COUNTED_CALLS_H_
