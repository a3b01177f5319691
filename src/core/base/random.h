// Random bits for identities and keys: the kernel's (getrandom) or, in a sandbox that forbids it,
// bits that are unique though not secret. Never fails and never waits for longer than the kernel.
//
// Thread-safety: from any thread; differs between forks.

#ifndef KVXFER_CORE_BASE_RANDOM_H_
#define KVXFER_CORE_BASE_RANDOM_H_

#include <cstdint>
#include <span>

namespace kvxfer {

void FillRandom(std::span<uint8_t> bytes);
// Never 0, which means "none" where these are used.
uint32_t RandomNonZero32();
uint64_t RandomNonZero64();

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_RANDOM_H_
