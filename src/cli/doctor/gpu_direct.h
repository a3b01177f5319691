// Checks of access to GPU memory by NICs. Their table is in gpu.cc.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CLI_DOCTOR_GPU_DIRECT_H_
#define KVXFER_CLI_DOCTOR_GPU_DIRECT_H_

#include <vector>

#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

// The NVIDIA GPUs on the PCI bus, as indices into Topology::gpus.
std::vector<size_t> NvidiaGpus(const SystemView& view);

// Whether GPU memory can be registered with NICs, and in which of the two ways.
Findings GpuDirect(const SystemView& view);
// How much GPU memory can be registered at once.
Findings GpuBar1(const SystemView& view);
// Whether kernels see data that NICs have written.
Findings GpuOrdering(const SystemView& view);
// Whether a NIC is near each GPU.
Findings GpuNics(const SystemView& view);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_GPU_DIRECT_H_
