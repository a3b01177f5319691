// Which providers are used, and with which capabilities.
//
// Thread-safety: functions without state; any thread.

#ifndef KVXFER_BACKENDS_LIBFABRIC_PROVIDER_H_
#define KVXFER_BACKENDS_LIBFABRIC_PROVIDER_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/libfabric/fi.h"

namespace kvxfer::libfabric {

// The most ops of one endpoint that may be in flight.
inline constexpr size_t kMaxFlights = 256;
// The most immediates that were sent over a rail and that its target has not reported as read; the
// target's completion queue has space for them. The target reports after every kHeardEvery.
inline constexpr uint32_t kMaxUnheard = 1024;
inline constexpr uint32_t kHeardEvery = kMaxUnheard / 4;

// A domain of `provider`; empty `domain`: the first. `host`: the address to be reached at, for
// providers that use host addresses; empty: any. `gpu_memory`: prefer a domain that accepts GPU
// memory (TakesGpuMemory). The error says what is missing.
absl::StatusOr<InfoPtr> FindProvider(const std::string& provider, const std::string& domain,
                                     const std::string& host, bool gpu_memory = false);
inline bool TakesGpuMemory(const fi_info& info) { return (info.caps & FI_HMEM) != 0; }
// Makes the provider leave GPU memory to its device; called before the endpoint is enabled. efa
// would otherwise have a CPU copy the memory if the device does not reach it. Returns a negative
// libfabric error if only a CPU could.
int KeepToTheDevice(fid_ep* endpoint);

// Closing an endpoint makes a rail quiet. So closing has to be possible at any time, and must stop
// the peer: an error names a provider whose endpoints crash, or in which one process writes into
// another's memory by itself.
absl::Status CheckClosing(std::string_view provider);
// An error: the provider cannot reach that peer at all.
absl::Status CheckReach(std::string_view provider, bool same_host);

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_PROVIDER_H_
