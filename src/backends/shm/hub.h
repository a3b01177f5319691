// What the connections of one backend share. Owned by the backend, which outlives them.

#ifndef KVXFER_BACKENDS_SHM_HUB_H_
#define KVXFER_BACKENDS_SHM_HUB_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/shm/attach_crew.h"
#include "src/backends/shm/poller.h"
#include "src/backends/shm/regions.h"
#include "src/transport/event_queue.h"

namespace kvxfer::shm {

class AcceptedEndpoint;
class DialledEndpoint;
class ShmEndpoint;

struct Hub {
  explicit Hub(uint32_t copy_threads);
  ~Hub();

  HostIdentity host;  // of this process
  Poller poller;
  EventQueue<std::string> events;
  SharedFiles files;
  AttachCrew crew;
  UniqueFd probe_file;       // a sealed memfd whose first u64 is
  uint64_t probe_value = 0;  // random
  // Accepted, but not yet said who they are; handed to the agent once they have.
  std::vector<std::unique_ptr<AcceptedEndpoint>> embryos;
  std::vector<AcceptedEndpoint*> authorised;  // and not down: they get every memfd
  std::deque<DialledEndpoint*> busy;          // with copies to do, next first
  std::vector<ShmEndpoint*> ringed;           // those with rings
  UniqueFd bell;                              // the other sides ring it while this one sleeps
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_HUB_H_
