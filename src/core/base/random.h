// Random bits for identities and keys: from the kernel (getrandom), or, in a sandbox that forbids
// that, bits that are unique but not secret. Never fails, and waits at most until the kernel's
// generator is ready.
//
// Thread-safety: any thread; parent and forked child get different bits.

#ifndef KVXFER_CORE_BASE_RANDOM_H_
#define KVXFER_CORE_BASE_RANDOM_H_

#include <cstdint>
#include <span>

namespace kvxfer {

void FillRandom(std::span<uint8_t> bytes);
// Secret bits alone, from the kernel in one way or the other. False: it gave none.
bool FillSecret(std::span<uint8_t> bytes);
// Never 0, because 0 means "none" wherever these values are used.
uint32_t RandomNonZero32();
uint64_t RandomNonZero64();

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_RANDOM_H_
