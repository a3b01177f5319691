// Makes and connects queue pairs on its own threads, so that the driver waits for none of them. On
// RoCE the kernel resolves the peer's address before a queue pair may receive, and an address that
// does not exist costs about a second.
//
// There are up to four threads, started when needed. No job waits behind an address that is known
// to be slow, nor behind one slow endpoint: at most two threads work for one endpoint, and at most
// two for addresses that were slow the last time. So at worst the first attempts at four dead
// addresses of two endpoints delay others, once, for a second.
//
// A queue pair that is in progress here is either unknown to the peer or has nothing posted, so a
// caller that cancels is quiet at once. Queue pairs are destroyed by the driver only.
//
// Thread-safety: none; called by the agent's driver only. Its own threads call Ibv::CreateQp and
// ModifyQp.

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
    QueueDepths depths{};
    std::unique_ptr<QueuePair> pair{};  // null: make one first
    std::optional<QpAddress> to{};      // nothing: do not connect it yet
  };
  // Is notified of the end of a job. The jobs of one client are those of one endpoint.
  class Client {
   public:
    virtual ~Client() = default;
    // `pair` may be non-null even on an error; it must be destroyed then.
    virtual void OnSetUp(uint32_t tag, absl::Status status, std::unique_ptr<QueuePair> pair) = 0;
  };

  SetupQueue(const VerbsOptions& options, DestroyQueue* destroyer)
      : options_(options), destroyer_(destroyer) {}
  ~SetupQueue() { Stop(); }

  absl::Status Open(net::Reactor* reactor);
  // Returns the job's ticket, which is never 0. A client has at most one job per tag.
  uint64_t Start(Job job, Client* client, uint32_t tag);
  // OnSetUp is not called from now on. The queue pair is destroyed as soon as no thread uses it.
  void Cancel(uint64_t ticket);
  // Calls OnSetUp for jobs that are over. Call it in each Poll.
  void Work();
  bool HasWork() const { return ready_.load(std::memory_order_acquire); }
  // Waits for the threads; device calls in progress finish first.
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
  // Only wakes the agent from epoll; Work checks `ready_` itself.
  class Bell final : public net::Watcher {
   public:
    void OnReady(uint32_t) override {}
  };

  void Loop();
  std::list<Entry>::iterator Next();
  Result Run(Entry entry) const;
  bool IsSlow(const Job& job) const { return job.to && slow_.contains(job.to->port.gid); }
  void AddThread();

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
  // Addresses that took long the last time; the value orders them by age.
  std::map<Gid, uint64_t> slow_;
  uint64_t slows_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
  std::atomic<bool> ready_{false};  // done_ is not empty
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SETUP_QUEUE_H_
