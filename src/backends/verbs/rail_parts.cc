// VerbsRail: building requests for memory that has more than one key per region and device: runs
// are cut where a part of either end's memory ends. Also for GPU memory, whose bytes the CPU cannot
// copy into a request (IBV_SEND_INLINE).

#include <algorithm>

#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/rail.h"
#include "src/backends/verbs/regions.h"

namespace kvxfer::verbs {
namespace {

const VerbsRegistration& LocalOf(const Run& run) {
  return static_cast<const VerbsRegistration&>(*run.registration);
}
const VerbsRemoteKey& RemoteOf(const Run& run) {
  return static_cast<const VerbsRemoteKey&>(*run.key);
}

// The key of `memory` at `address` with `device`, which is `one` if there is only one. `bytes` is
// cut to the reach of the key.
template <typename Memory>
uint32_t KeyAt(const Memory& memory, size_t device, uint64_t address, uint32_t one,
               uint64_t& bytes) {
  const PartKeys* const parts = memory.parts();
  return parts == nullptr ? one : parts->At(device, address, bytes);
}

}  // namespace

uint32_t VerbsRail::RequestsOf(const Op& op) {
  uint32_t requests = 0;
  for (RunWalk walk(op.blocks); !walk.done(); ++requests) {
    const Run& run = walk.run();
    if (run.registration == nullptr || run.key == nullptr) return 0;
    uint64_t bytes = run.bytes;
    KeyAt(LocalOf(run), 0, run.local, 0, bytes);
    KeyAt(RemoteOf(run), 0, run.remote, 0, bytes);
    walk.Take(bytes);
  }
  return std::max(requests, 1u);
}

uint32_t VerbsRail::BuildParts(const Op& op, bool& local_gpu) {
  RequestBuilder builder = MakeBuilder(op.kind);
  const size_t local_device = device().ordinal();
  for (RunWalk walk(op.blocks); !walk.done();) {
    const Run& run = walk.run();
    const VerbsRegistration& local = LocalOf(run);
    const VerbsRemoteKey& remote = RemoteOf(run);
    uint64_t bytes = run.bytes;
    const uint32_t lkey = KeyAt(local, local_device, run.local, local.lkey(local_device), bytes);
    const uint32_t rkey =
        KeyAt(remote, remote_device_, run.remote, remote.rkey(remote_device_), bytes);
    const bool by_cpu = local.gpu() == nullptr;
    local_gpu = local_gpu || !by_cpu;
    builder.Add(run.local, lkey, run.remote, rkey, bytes, by_cpu);
    walk.Take(bytes);
  }
  return builder.requests();
}

}  // namespace kvxfer::verbs
