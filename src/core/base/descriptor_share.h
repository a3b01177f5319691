// How many descriptors the process spares for peers that have not proved who they are. Anybody who
// reaches a listener can open connections; those of proved peers, and the application, need the
// rest.
//
// Thread-safety: callable from any thread.

#ifndef KVXFER_CORE_BASE_DESCRIPTOR_SHARE_H_
#define KVXFER_CORE_BASE_DESCRIPTOR_SHARE_H_

#include <cstddef>

namespace kvxfer {

// One connection with all of its streams fits the least.
inline constexpr size_t kLeastForUnproved = 32;
inline constexpr size_t kMostForUnproved = 1024;

// A quarter of what the process may have open (RLIMIT_NOFILE, as it is now), within the two above.
size_t DescriptorsForUnproved();

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_DESCRIPTOR_SHARE_H_
