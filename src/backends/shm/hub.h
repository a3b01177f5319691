// What the connections of one backend share. The backend owns it and outlives them.

#ifndef KVXFER_BACKENDS_SHM_HUB_H_
#define KVXFER_BACKENDS_SHM_HUB_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/shm/attach_threads.h"
#include "src/backends/shm/channel.h"
#include "src/backends/shm/handles.h"
#include "src/backends/shm/regions.h"
#include "src/transport/event_queue.h"
#include "src/transport/ring_choice.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::shm {

class ShmAcceptedEndpoint;
class ShmDialledEndpoint;
class ShmEndpoint;

struct Hub {
  Hub(uint32_t copy_threads, ControlCarrier control);
  ~Hub();

  // Sends every authorised peer the memfds that were registered since the last call.
  void SendNewFiles();

  HostIdentity host;  // of this process
  std::unique_ptr<net::Reactor> reactor;
  EventQueue<std::string> events;
  std::unique_ptr<Channel::Buffer> receive_buffer =
      std::make_unique_for_overwrite<Channel::Buffer>();
  SharedFiles files;
  AttachThreads threads;
  UniqueFd probe_file;       // a sealed memfd whose first u64 is probe_value
  uint64_t probe_value = 0;  // random
  // Accepted, but their kDial has not arrived; then they are reported to the agent.
  std::vector<std::unique_ptr<ShmAcceptedEndpoint>> embryos;
  std::vector<ShmAcceptedEndpoint*> authorised;  // and not down: these are sent every memfd
  std::deque<ShmDialledEndpoint*> busy;          // with copies to do, the next one first
  std::deque<ShmDialledEndpoint*> lingering;     // shut down, with frames to send; by deadline
  std::vector<ShmDialledEndpoint*> held;         // ended, but for copies of GPUs (HoldOpen)
  std::vector<ShmEndpoint*> ringed;              // those that have rings
  net::RingChoice ring_choice;
  UniqueFd bell;  // the other sides ring it while this one sleeps, and Register does
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_HUB_H_
