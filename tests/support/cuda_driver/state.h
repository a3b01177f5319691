// What the stand-in driver knows: one of it in a process, made by the first call and never
// destroyed.
//
// Thread-safety: everything under `mutex` but where it says otherwise.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STATE_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STATE_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "src/cuda/api.h"
#include "tests/support/cuda_driver/config.h"
#include "tests/support/cuda_driver/faults.h"
#include "tests/support/cuda_driver/memory_map.h"
#include "tests/support/cuda_driver/streams.h"

namespace kvxfer::testing::cuda_driver {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): what is implemented here
using Lock = std::unique_lock<std::mutex>;

struct Device;

// The primary context of a device. Its address is the CUcontext.
struct Context {
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }

  int device = 0;
  unsigned retained = 0;
  // What ruined it, until it is reset.
  CUresult sticky = CUDA_SUCCESS;
  std::set<int> peers{};  // devices whose memory its kernels reach
  std::shared_ptr<Stream> default_stream{};
  std::map<std::thread::id, std::shared_ptr<Stream>> thread_streams{};
};

// A write of a NIC that nobody sees yet.
struct NicWrite {
  uint64_t at = 0;
  uint64_t buffer_id = 0;  // of the allocation that was there
  std::vector<std::byte> bytes{};
};

struct Device {
  int index = 0;  // among all of the host: its identity
  CUuuid uuid{};
  std::map<int, int> attributes{};
  std::atomic<size_t> used{0};
  Context context{};
  std::vector<NicWrite> nic_writes{};
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Operation> recorded{};  // null: never
};

struct Module {
  Context* context = nullptr;
};
struct Kernel {
  uint64_t module = 0;
};

// What cuMemCreate made or an import gave.
struct Handle {
  std::shared_ptr<Physical> physical{};
  int references = 0;  // not released
  int mappings = 0;
};

struct DmabufRange {
  uint64_t at = 0;
  size_t bytes = 0;
  std::vector<std::shared_ptr<Physical>> keep{};
};

struct State {
  State();

  const pid_t pid;
  const Config config;
  const uint64_t incarnation;  // random: who an IPC handle belongs to

  std::mutex mutex{};
  // Told whenever an operation ends, or one may begin.
  std::condition_variable changed{};
  bool initialised = false;
  std::atomic<bool> ended{false};  // the process exits
  std::deque<Device> devices{};
  MemoryMap memory{};
  Faults faults;

  uint64_t next_id = 1;
  uint64_t next_buffer = 1;
  std::map<uint64_t, std::shared_ptr<Stream>> streams{};
  std::vector<std::shared_ptr<Stream>> leaving{};  // destroyed ones that have something to do
  std::map<uint64_t, Event> events{};
  std::map<uint64_t, Module> modules{};
  std::map<uint64_t, Kernel> kernels{};
  std::map<uint64_t, Handle> handles{};
  std::map<uint64_t, std::shared_ptr<View>> reservations{};
  std::map<ino_t, DmabufRange> dmabufs{};

  std::set<uint64_t> capturing{};  // streams
  bool capture_spoilt = false;

  bool paused = false;
  std::atomic<int64_t> delay_us{0};
  uint64_t default_stream_uses = 0;
  uint64_t pageable_copies = 0;

  // Null: no such device.
  Device* FindDevice(int ordinal);
  Device* FindDevice(const CUuuid& uuid);
  Context* FindContext(CUcontext handle);
  uint64_t NewId() { return next_id++; }
};

State& TheState();

// Handles that are never dereferenced, and never given twice: one that is stale is known as such.
template <typename Handle>
Handle ToHandle(uint64_t id) {
  return reinterpret_cast<Handle>((id << 8) | 0xc0);
}
template <typename Handle>
uint64_t ToId(Handle handle) {
  const auto value = reinterpret_cast<uint64_t>(handle);
  return (value & 0xff) == 0xc0 ? value >> 8 : 0;
}

// Whether kernels of `from` can be let at memory of `to`, by the hardware.
bool CanReach(const Device& from, const Device& to);

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STATE_H_
