// Data threads: they move the bytes of data streams beside the agent's driving thread.
//
// A rail is lent to one thread, which then sends and receives on it alone, until it is recalled.
// The driver does the rest: it posts ops, and has the events of lent rails reported (Deliver) in
// the order in which each thread made them.
//
// A thread takes its own lock for each step of a rail: at most 4 MiB sent and 768 KiB received. The
// driver takes the same lock (DataThread::Hold) to fence a transfer, to recall a rail or to close a
// region, and goes first. So it waits for one step, and what it has ended is over when it lets go.
// DeliverAll then reports what happened before, so that kFenced comes behind every immediate.
//
// Thread-safety: the members of LentRail and DataThreads are for the driver, except those of
// RailHost, which whoever runs the rail calls.

#ifndef KVXFER_BACKENDS_TCP_DATA_THREAD_H_
#define KVXFER_BACKENDS_TCP_DATA_THREAD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/rail.h"
#include "src/backends/tcp/rail_host.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/transport/event_sink.h"
#include "src/transport/regions.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/stream.h"

namespace kvxfer::tcp {

class DataThread;
class LentRail;

// What happened on a lent rail; one of RailHost's calls.
struct RailEvent {
  enum class Kind : uint8_t { kMarker, kImmediate, kCompletion, kSent, kFailed };
  Kind kind;
  LentRail* rail = nullptr;
  uint64_t id = 0;  // kMarker: the transfer; kImmediate: the immediate; kCompletion: the op
  absl::Status status{};
};

// Wakes the thread that sleeps on a reactor: the driver, or a data thread.
class Bell {
 public:
  // `reactor` watches the bell.
  static absl::StatusOr<std::unique_ptr<Bell>> Create(net::Reactor* reactor);
  // For the sleeper. It is about to sleep, and looks for work once more after this call.
  void Arm() { armed_.store(true); }
  void Disarm() { armed_.store(false, std::memory_order_relaxed); }
  // For whoever has made work.
  void Ring();

 private:
  explicit Bell(net::Fd fd) : fd_(std::move(fd)) {}

  const net::Fd fd_;
  std::atomic<bool> armed_ = false;
};

class DataThread {
 public:
  // `regions` and `driver`, which the thread rings when it has made events, are borrowed.
  static absl::StatusOr<std::unique_ptr<DataThread>> Start(net::RegionMap* regions, Bell* driver);
  ~DataThread();

  // While one lives, the driver may call the rails of the thread as if they were its own.
  class Hold {
   public:
    explicit Hold(DataThread* thread);
    ~Hold();
    Hold(Hold&& other) noexcept : thread_(std::exchange(other.thread_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;

   private:
    DataThread* thread_;
  };

  // --- for the driver ---
  // An op for a rail of this thread.
  void Post(LentRail* rail, const Op& op);
  // Moves the events that have been made to the end of `out`.
  void TakeEvents(std::deque<RailEvent>& out);
  bool has_events() const { return events_waiting_.load() != 0; }

  // --- for LentRail, within a step or while the driver holds the thread ---
  net::Reactor& reactor() { return *reactor_; }
  net::RegionCache& cache() { return cache_; }
  net::RegionMap& regions() { return *regions_; }
  std::span<std::byte> scratch() { return scratch_; }
  StagePool& stages() { return stages_; }
  bool full() const;
  void Push(RailEvent event);
  // `rail` may have work.
  void Mark(LentRail* rail);
  void Add(LentRail* rail);
  void Forget(LentRail* rail);

 private:
  struct Posted {
    LentRail* rail;
    Op op;
  };

  DataThread(net::RegionMap* regions, Bell* driver) : regions_(regions), driver_(driver) {}

  void Loop();
  bool Step();
  void GiveWay();
  void Sleep();
  void WaitForSpace();
  void TakeReady();
  void TakePosted();
  // The thread goes round once more before it sleeps.
  void Poke();

  net::RegionMap* const regions_;
  Bell* const driver_;
  std::unique_ptr<Bell> bell_;  // of this thread
  std::atomic<bool> closing_ = false;
  std::atomic<bool> poked_ = false;
  std::atomic<uint32_t> holders_ = 0;  // that wait for mu_

  std::mutex mu_;
  // Under mu_.
  std::unique_ptr<net::Reactor> reactor_;
  net::RegionCache cache_;
  std::vector<std::byte> scratch_;
  StagePool stages_;
  std::vector<LentRail*> rails_;
  std::deque<LentRail*> active_;
  uint32_t steps_ = 0;
  bool made_events_ = false;  // since the driver was last rung
  std::vector<Posted> taken_;
  // Rails that have left since the last dispatch: ready_ may still name them.
  std::vector<const net::Watcher*> recalled_;

  net::Reactor::Ready ready_;  // the thread's own

  // Between the driver and the thread; taken after mu_, and for moments only.
  std::mutex queues_mu_;
  std::vector<Posted> posted_;
  std::deque<RailEvent> events_;
  std::atomic<size_t> events_waiting_ = 0;  // events_.size()

  std::thread thread_;
};

// A rail in the hands of a data thread.
class LentRail final : public RailHost, public net::StreamClient {
 public:
  // `home`: the rail's endpoint.
  LentRail(DataThread* thread, TcpRail* rail, RailHome* home)
      : thread_(thread), rail_(rail), home_(home) {}

  // --- for the driver ---
  DataThread* thread() const { return thread_; }
  RailHome* home() const { return home_; }
  const TcpRail& rail() const { return *rail_; }
  // False: there is no space.
  bool Post(const Op& op);
  // Passes an event on to the home.
  void Deliver(RailEvent event);

  // --- within a step, or while the driver holds the thread ---
  void Push(const Op& op) { rail_->Push(op); }
  void Step();
  bool HasWork() const;
  // The thread no longer touches the socket.
  void Fail(absl::Status why);
  // Has what the socket is ready for reported once more.
  void WatchAgain();
  absl::Status MoveHome(net::StreamClient* client) { return rail_->MoveTo(home_, client); }
  bool active = false;  // in the thread's list

  // --- RailHost ---
  bool CanTakeEvents() const override { return !thread_->full(); }
  bool MayRead() override { return true; }
  std::span<std::byte> scratch() override { return thread_->scratch(); }
  StagePool& stages() override { return thread_->stages(); }
  absl::StatusOr<const net::Region*> Check(const net::WireRun& run, Access wanted) override {
    return thread_->regions().Check(run, wanted, thread_->cache());
  }
  void OnMarker(uint64_t transfer, uint32_t rail) override;
  void OnImmediate(uint32_t rail, uint32_t immediate) override;
  void OnCompletion(uint64_t op, uint32_t rail, absl::Status status) override;
  void OnSent(uint32_t rail) override;

  // --- StreamClient ---
  net::Reactor& reactor() override { return thread_->reactor(); }
  void Activate() override { thread_->Mark(this); }

 private:
  struct OpenOp {
    uint64_t id;
    uint64_t bytes;
    bool read;
  };

  DataThread* const thread_;
  TcpRail* const rail_;
  RailHome* const home_;
  bool failed_ = false;
  // The driver's: posted, and not reported.
  std::vector<OpenOp> open_;
  uint64_t open_bytes_ = 0;  // of writes among them
  size_t open_reads_ = 0;
};

// The data threads of one backend.
class DataThreads {
 public:
  // Both are borrowed. `threads` may be 0. The threads start with the first rail.
  DataThreads(uint32_t threads, net::RegionMap* regions, net::Reactor* reactor)
      : threads_wanted_(threads), regions_(regions), reactor_(reactor) {}

  bool asked_for() const { return threads_wanted_ > 0; }
  // Lends a rail that is up. Null: there is no thread, and the rail stays where it is.
  std::unique_ptr<LentRail> Lend(TcpRail* rail, RailHome* home);
  // Takes the rail back to its home. Everything that happened on it has been reported then. An
  // error: the rail can no longer be used.
  absl::Status Recall(std::unique_ptr<LentRail> rail, net::StreamClient* client);
  // The same where nobody is told any more: what happened on the rail is dropped.
  void Drop(std::unique_ptr<LentRail> rail, net::StreamClient* client);
  void Forget(const RailHome* home);
  // The region is being closed. No thread looks at it, or runs a step, while what is returned
  // lives.
  std::vector<DataThread::Hold> Forget(const net::Region& region);

  // Reports what the threads have done until now.
  void DeliverAll();
  // The same within Poll, as far as there is space in `sink` for it; then handles failures.
  void Deliver(const net::EventSink& sink);
  // False: there are events, and the driver must not sleep.
  bool Arm();

 private:
  struct Failure {
    RailHome* home;
    uint32_t rail;
    uint32_t life;
    absl::Status why;
  };

  bool Start();
  void Collect();
  void DeliverOne();

  const uint32_t threads_wanted_;
  net::RegionMap* const regions_;
  net::Reactor* const reactor_;
  bool started_ = false;
  std::unique_ptr<Bell> bell_;  // of the driver
  std::vector<std::unique_ptr<DataThread>> threads_;
  size_t turn_ = 0;  // the thread that gets the next rail
  std::deque<RailEvent> events_;
  std::vector<Failure> failures_;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_DATA_THREAD_H_
