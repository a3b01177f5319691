// Checks of what GPUs and NICs have to do with each other; the table of them is in gpu.cc.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CLI_DOCTOR_GPU_DIRECT_H_
#define KVXFER_CLI_DOCTOR_GPU_DIRECT_H_

#include <vector>

#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

// NVIDIA's GPUs on the PCI bus, as indices into Topology::gpus.
std::vector<size_t> NvidiaGpus(const SystemView& view);

// Whether NICs can be given GPU memory at all, and by which of the two ways.
Findings GpuDirect(const SystemView& view);
// How much of it at once.
Findings GpuBar1(const SystemView& view);
// Whether kernels see what NICs have written.
Findings GpuOrdering(const SystemView& view);
// Whether a NIC is near each GPU.
Findings GpuNics(const SystemView& view);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_GPU_DIRECT_H_
