// Makes and connects queue pairs on threads of its own, so that the backend's owner waits for none:
// on RoCE the kernel looks up who has the peer's address before a queue pair may receive, and one
// that nobody has costs about a second.
//
// Four threads, started when they are needed. No job waits for an address that is known to be slow,
// nor for one slow link: at most two of the threads work for one link, and at most two for
// addresses that were slow the last time. So the first attempts at four dead addresses of two links
// are what holds up others, once, for a second.
//
// A queue pair that is under way here was not told to the peer, or has nothing posted: whoever
// cancels is quiet at once. Queue pairs are destroyed by the owner's thread alone.
//
// Thread-safety: none; used by the backend's owner. Its threads call Ibv::CreateQp and ModifyQp.

#ifndef KVXFER_BACKENDS_VERBS_SETUP_QUEUE_H_
#define KVXFER_BACKENDS_VERBS_SETUP_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::verbs {

class SetupQueue {
 public:
  struct Job {
    Device* device = nullptr;
    LocalPort port{};
    uint32_t depth = 0;                 // of QueuePair::Create
    std::unique_ptr<QueuePair> pair{};  // null: one is made first
    std::optional<QpAddress> to{};      // none: it is not connected yet
  };
  // Who hears of the end of a job; its jobs are those of one link.
  class Client {
   public:
    virtual ~Client() = default;
    // `pair` may be there in spite of an error, to be destroyed.
    virtual void OnSetUp(uint32_t tag, absl::Status status, std::unique_ptr<QueuePair> pair) = 0;
  };

  SetupQueue(const VerbsOptions& options, DestroyQueue* destroyer)
      : options_(options), destroyer_(destroyer) {}
  ~SetupQueue() { Stop(); }

  absl::Status Open(net::Reactor* reactor);
  // Returns the job's ticket, never 0. A client has at most one job for each tag.
  uint64_t Start(Job job, Client* client, uint32_t tag);
  // OnSetUp is not called any more; its queue pair is destroyed, as soon as a thread has let go.
  void Cancel(uint64_t ticket);
  // Calls OnSetUp for what is over. In each Poll.
  void Work();
  bool HasWork() const { return ready_.load(std::memory_order_acquire); }
  // Waits for the threads; the device's calls that are under way end first.
  void Stop();

 private:
  static constexpr size_t kThreads = 4;
  static constexpr size_t kOfOneClient = 2;
  static constexpr size_t kOfSlow = 2;
  static constexpr size_t kMaxSlow = 1024;

  struct Entry {
    uint64_t ticket = 0;
    const Client* client = nullptr;
    Job job{};
  };
  struct Running {
    uint64_t ticket = 0;
    const Client* client = nullptr;
    bool slow = false;
  };
  struct Result {
    uint64_t ticket = 0;
    absl::Status status{};
    std::unique_ptr<QueuePair> pair{};
  };
  struct Owner {
    Client* client = nullptr;
    uint32_t tag = 0;
  };
  // Woken for its descriptor's sake; what is ready says so itself.
  class Bell final : public net::Watcher {
   public:
    void OnReady(uint32_t) override {}
  };

  void Loop();
  std::list<Entry>::iterator Next();
  Result Run(Entry entry) const;
  bool IsSlow(const Job& job) const { return job.to && slow_.contains(job.to->port.gid); }
  void StartThread();

  const VerbsOptions options_;
  DestroyQueue* const destroyer_;
  net::Reactor* reactor_ = nullptr;
  net::Fd bell_;
  Bell watcher_;
  uint64_t last_ticket_ = 0;
  std::unordered_map<uint64_t, Owner> owners_;  // of jobs that are not cancelled

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Entry> waiting_;
  std::vector<Running> running_;
  std::vector<Result> done_;
  std::map<Gid, uint64_t> slow_;  // addresses that took long the last time, and when that was
  uint64_t slows_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
  std::atomic<bool> ready_{false};  // done_ has something
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SETUP_QUEUE_H_
