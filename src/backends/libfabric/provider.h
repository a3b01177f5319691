// Which providers are taken, and what of them.
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

// Ops of one endpoint that have not ended.
inline constexpr size_t kMaxFlights = 256;
// The most immediates that have gone over a rail and that its target has not read; its completion
// queue holds so many. The target says how many it has read whenever these are that many more.
inline constexpr uint32_t kMaxUnheard = 1024;
inline constexpr uint32_t kHeardEvery = kMaxUnheard / 4;

// A domain of `provider`; empty: the first. `host`: the address to be reached at, for providers
// that go by addresses of hosts; empty: any. `gpu_memory`: one that takes memory of GPUs
// (TakesGpuMemory), if there is one. The error says what is missing.
absl::StatusOr<InfoPtr> FindProvider(const std::string& provider, const std::string& domain,
                                     const std::string& host, bool gpu_memory = false);
inline bool TakesGpuMemory(const fi_info& info) { return (info.caps & FI_HMEM) != 0; }
// Keeps a provider to what its device does with GPU memory, before the endpoint is enabled: not to
// copy it by a CPU, which efa does else where the device does not reach it. Negative, as libfabric
// says it: then it would.
int KeepToTheDevice(fid_ep* endpoint);

// Closing an endpoint is what makes a rail quiet: it has to be possible at any time, and where one
// process writes into another's memory by itself, it stops nothing.
absl::Status CheckClosing(std::string_view provider);
// Whether the provider gets there at all.
absl::Status CheckReach(std::string_view provider, bool same_host);

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_PROVIDER_H_
