// Destroys queue pairs, and retries if a device refuses. Until a queue pair is destroyed it may
// still read and write memory, and nobody may report that it does not.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_DESTROY_QUEUE_H_
#define KVXFER_BACKENDS_VERBS_DESTROY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/backends/verbs/queue_pair.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class DestroyQueue {
 public:
  // Waits for the destruction of a queue pair that its device refused to destroy at first.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void OnDestroyed(uint32_t tag, Device& device, uint32_t number) = 0;
  };

  ~DestroyQueue() { Close(); }

  // True: the queue pair is destroyed (or null). False: the device refuses; `client`, unless null,
  // is called once it is destroyed. `room`: the number of completion queue entries that are free
  // from then on.
  bool Destroy(std::unique_ptr<QueuePair> pair, Client* client = nullptr, uint32_t tag = 0,
               uint32_t space = 0);
  // `client` is not called from now on.
  void Forget(const Client* client);
  // An error if so many queue pairs of that device wait that no more should be made.
  absl::Status CheckSpace(const Device& device) const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  // Tries one last time.
  void Close();

 private:
  struct Entry {
    std::unique_ptr<QueuePair> pair{};
    Client* client = nullptr;
    uint32_t tag = 0;
    uint32_t space = 0;
    Duration wait{};
    Time next{};
  };
  std::vector<Entry> entries_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_DESTROY_QUEUE_H_
