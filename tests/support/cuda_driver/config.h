// What the environment says the stand-in driver is to be. Each setting is a variable of its own,
// KVXFER_STANDIN_ and its name in capitals; an unknown one, or a value that is none, ends the
// process with a message. Read once, at the first call of the driver.
//
// Lifetime: of the process. Thread-safety: constant.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CONFIG_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/cuda/api.h"

namespace kvxfer::testing::cuda_driver {

struct Config {
  // DEVICES: how many there are; 0: cuInit gives NO_DEVICE. The first two reach each other, the
  // others nobody. CUDA_VISIBLE_DEVICES says which of them this process sees, by number.
  int64_t devices = 2;
  int64_t memory = int64_t{16} << 30;  // MEMORY: bytes of each, for each process
  // What attributes say; their calls answer NOT_SUPPORTED where they are 0.
  int64_t writes_ordering = 0;  // WRITES_ORDERING: 0, 100 (owner), 200 (all)
  int64_t flush_options = 1;    // FLUSH_OPTIONS: bits; 1: cuFlushGPUDirectRDMAWrites works
  int64_t gpu_direct = 1;       // GPU_DIRECT
  int64_t dmabuf = 1;           // DMABUF
  int64_t stream_values = 1;    // STREAM_VALUES: cuStreamWaitValue32, cuStreamWriteValue32
  int64_t vmm = 1;              // VMM: cuMemCreate and what belongs to it
  int64_t fd_handles = 1;       // FD_HANDLES
  int64_t fabric = 0;           // FABRIC
  int64_t ipc = 1;              // IPC: legacy handles
  int64_t integrated = 0;       // INTEGRATED
  int64_t compute = 90;         // COMPUTE: 10 * major + minor
  int64_t processors = 8;       // PROCESSORS: multiprocessors
  int64_t numa = 0;             // NUMA: node of the host, -1: not known
  int64_t version = 13000;      // VERSION
  int64_t mps = -1;             // MPS: 1 or 0: it is on or off; -1: the driver does not say
  // DELAY_US: before each operation a stream waits 0 to so many microseconds, by SEED.
  int64_t delay_us = 0;
  int64_t seed = 1;
  int64_t at_once =
      0;  // AT_ONCE: 1: a kernel has run when its launch returns, and a word is written
  int64_t no_default_stream = 0;  // NO_DEFAULT_STREAM: 1: who uses it ends the process
  std::string init{};  // INIT: what cuInit fails with, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
  // FAIL: calls that fail, with commas: "cuMemcpyAsync:2:CUDA_ERROR_OUT_OF_MEMORY" (the second
  // call; 0: every), "async:1:CUDA_ERROR_ILLEGAL_ADDRESS" (the first operation that a stream
  // begins).
  std::string fail{};
};

Config ConfigFromEnvironment();

// The numbers of CUDA_VISIBLE_DEVICES below `count`, up to the first that is none; all where it is
// not set.
std::vector<int> VisibleDevices(int count);

[[noreturn]] void Die(const std::string& what);

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CONFIG_H_
