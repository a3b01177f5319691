// Destroys queue pairs, and again where a device refuses: until it has, that queue pair may still
// read and write memory, and nobody may be told that it does not.
//
// Thread-safety: none; used by the backend's owner.

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
  // Who waits for the end of a queue pair that its device refused to destroy at first.
  class Client {
   public:
    virtual ~Client() = default;
    virtual void OnDestroyed(uint32_t tag, Device& device, uint32_t number) = 0;
  };

  ~DestroyQueue() { Close(); }

  // True: it is destroyed (or null). False: the device refuses, and `client`, unless it is null, is
  // called once it does not any more. From then on `room` work requests may be posted again.
  bool Destroy(std::unique_ptr<QueuePair> pair, Client* client = nullptr, uint32_t tag = 0,
               uint32_t room = 0);
  // Nothing is said to `client` any more.
  void Forget(const Client* client);
  // An error where so many of that device wait that no more should be made there.
  absl::Status CheckRoom(const Device& device) const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  // Tries a last time.
  void Close();

 private:
  struct Entry {
    std::unique_ptr<QueuePair> pair{};
    Client* client = nullptr;
    uint32_t tag = 0;
    uint32_t room = 0;
    Duration wait{};
    Time next{};
  };
  std::vector<Entry> entries_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_DESTROY_QUEUE_H_
