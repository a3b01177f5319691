// DataThread: its loop, and what the driver and it say to each other.

#include "src/backends/tcp/data_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"
#include "src/transport/host/hidden_move.h"

namespace kvxfer::tcp {
namespace {

// How many events may wait for the driver; with more the thread stops.
constexpr size_t kMaxEvents = 1024;
// After how many steps the thread looks for sockets that have become ready, while it has work.
constexpr uint32_t kCollectEvery = 8;
// What one step sends and receives at most. The driver waits for a step when it ends something. A
// large send is cheaper by a third (TcpRail), and no memory of the target is touched by it.
constexpr size_t kSendStepBytes = 4 * 1024 * 1024;
constexpr size_t kReceiveStepBytes = 512 * 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Bell>> Bell::Create(net::Reactor* reactor) {
  net::Fd fd = net::Fd::Open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!fd.valid()) return absl::ResourceExhaustedError(ErrnoText("eventfd", errno));
  absl::Status added = reactor->Add(fd.get(), nullptr, EPOLLIN | EPOLLET);
  if (!added.ok()) return added;
  return std::unique_ptr<Bell>(new Bell(std::move(fd)));
}

void Bell::Ring() {
  if (!armed_.load() || !armed_.exchange(false)) return;
  // Reading is not needed: what watches it is edge-triggered.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof(one));
}

absl::StatusOr<std::unique_ptr<DataThread>> DataThread::Start(net::RegionMap* regions,
                                                              Bell* driver) {
  std::unique_ptr<DataThread> out(new DataThread(regions, driver));
  absl::StatusOr<std::unique_ptr<net::Reactor>> reactor = net::Reactor::Create();
  if (!reactor.ok()) return reactor.status();
  out->reactor_ = *std::move(reactor);
  absl::StatusOr<std::unique_ptr<Bell>> bell = Bell::Create(out->reactor_.get());
  if (!bell.ok()) return bell.status();
  out->bell_ = *std::move(bell);
  out->scratch_.resize(kScratchBytes);
  try {
    out->thread_ = StartThread("kvxfer-tcp", [thread = out.get()] { thread->Loop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread: ", error.what(), "; raise the limit of threads (ulimit -u)"));
  }
  return out;
}

DataThread::~DataThread() {
  closing_ = true;
  if (!thread_.joinable()) return;
  events_waiting_.store(0);
  events_waiting_.notify_one();
  Poke();
  thread_.join();
}

void DataThread::Loop() {
  HideMovesOfThisThread();
  while (!closing_) {
    GiveWay();
    bool more = false;
    bool full = false;
    bool ring = false;
    {
      const std::lock_guard lock(mu_);
      TakeReady();
      TakePosted();
      more = Step();
      full = !more && !active_.empty();
      ring = std::exchange(made_events_, false);
    }
    if (ring) driver_->Ring();
    if (full) WaitForSpace();
    if (!more && !full) Sleep();
  }
}

void DataThread::TakeReady() {
  net::Reactor::Dispatch(ready_, recalled_);
  ready_.count = 0;
  // A rail may have come back meanwhile with another socket, whose event was dropped with those of
  // the one before.
  for (LentRail* const rail : recalled_.empty() ? std::span<LentRail*>() : std::span(rails_)) {
    if (std::ranges::find(recalled_, &rail->rail()) != recalled_.end()) rail->WatchAgain();
  }
  recalled_.clear();
}

// One step of one rail. False: there is nothing to do.
bool DataThread::Step() {
  if (active_.empty() || ++steps_ % kCollectEvery == 0) reactor_->Collect();
  if (active_.empty() || full()) return false;
  LentRail* const rail = active_.front();
  active_.pop_front();
  rail->active = false;
  rail->Step();
  if (rail->HasWork()) Mark(rail);
  return true;
}

// The driver goes first: a mutex would let this thread take it again and again.
void DataThread::GiveWay() {
  for (uint32_t holders = holders_.load(); holders != 0; holders = holders_.load()) {
    holders_.wait(holders);
  }
}

// Until the driver has taken events, or this thread ends. Rails have work meanwhile, whose edges
// have come: epoll would not wake the thread for it.
void DataThread::WaitForSpace() {
  if (const size_t waiting = events_waiting_.load(); waiting >= kMaxEvents) {
    events_waiting_.wait(waiting);
  }
}

void DataThread::Sleep() {
  bell_->Arm();
  if (!poked_.exchange(false)) reactor_->Wait(ready_);
  bell_->Disarm();
}

void DataThread::Poke() {
  poked_.store(true);
  bell_->Ring();
}

DataThread::Hold::Hold(DataThread* thread) : thread_(thread) {
  thread->holders_.fetch_add(1);
  thread->mu_.lock();
  thread->holders_.fetch_sub(1);
  thread->holders_.notify_one();
  thread->TakePosted();
}

DataThread::Hold::~Hold() {
  if (thread_ == nullptr) return;
  thread_->made_events_ = false;  // the driver looks for them by itself
  const bool work = !thread_->active_.empty();
  thread_->mu_.unlock();
  if (work) thread_->Poke();
}

void DataThread::Post(LentRail* rail, const Op& op) {
  {
    const std::lock_guard lock(queues_mu_);
    posted_.push_back({rail, op});
  }
  Poke();
}

void DataThread::TakePosted() {
  {
    const std::lock_guard lock(queues_mu_);
    taken_.swap(posted_);
  }
  for (const Posted& posted : taken_) {
    posted.rail->Push(posted.op);
    Mark(posted.rail);
  }
  taken_.clear();
}

void DataThread::TakeEvents(std::deque<RailEvent>& out) {
  if (!has_events()) return;
  const std::lock_guard lock(queues_mu_);
  if (out.empty()) {
    out.swap(events_);
  } else {
    std::ranges::move(events_, std::back_inserter(out));
    events_.clear();
  }
  events_waiting_.store(0);
  events_waiting_.notify_one();
}

bool DataThread::full() const { return events_waiting_.load() >= kMaxEvents; }

void DataThread::Push(RailEvent event) {
  made_events_ = true;
  const std::lock_guard lock(queues_mu_);
  events_.push_back(std::move(event));
  events_waiting_.store(events_.size());
}

void DataThread::Mark(LentRail* rail) {
  if (std::exchange(rail->active, true)) return;
  active_.push_back(rail);
}

void DataThread::Add(LentRail* rail) {
  rails_.push_back(rail);
  Mark(rail);
}

void DataThread::Forget(LentRail* rail) {
  std::erase(rails_, rail);
  if (std::exchange(rail->active, false)) std::erase(active_, rail);
  recalled_.push_back(&rail->rail());
}

bool LentRail::Post(const Op& op) {
  if (!TcpRail::HasSpace(open_bytes_, open_.size(), open_reads_)) return false;
  const bool read = op.kind == OpKind::kRead;
  open_.push_back({.id = op.id, .bytes = read ? 0 : op.blocks.bytes, .read = read});
  open_bytes_ += open_.back().bytes;
  open_reads_ += read ? 1 : 0;
  thread_->Post(this, op);
  return true;
}

void LentRail::Deliver(RailEvent event) {
  const uint32_t rail = rail_->index();
  switch (event.kind) {
    case RailEvent::Kind::kMarker:
      return home_->OnMarker(event.id, rail);
    case RailEvent::Kind::kImmediate:
      return home_->OnImmediate(rail, static_cast<uint32_t>(event.id));
    case RailEvent::Kind::kSent:
      return home_->OnSent(rail);
    case RailEvent::Kind::kFailed:
      return;  // DataThreads
    case RailEvent::Kind::kCompletion:
      break;
  }
  // Ops end in about the order of Post, and few are open. One that was posted before the rail was
  // lent is not among them.
  const auto it = std::ranges::find(open_, event.id, &OpenOp::id);
  if (it != open_.end()) {
    open_bytes_ -= it->bytes;
    open_reads_ -= it->read ? 1 : 0;
    open_.erase(it);
  }
  home_->OnCompletion(event.id, rail, std::move(event.status));
}

void LentRail::Step() {
  if (failed_) return;
  absl::Status status;
  if (rail_->hung_up()) {
    status = rail_->WhyHungUp();
  } else if (rail_->CanSend()) {
    status = rail_->Send(kSendStepBytes);
  }
  if (status.ok() && rail_->CanReceive()) status = rail_->Receive(kReceiveStepBytes);
  if (!status.ok()) Fail(std::move(status));
}

void LentRail::WatchAgain() {
  if (!failed_) thread_->reactor().Change(rail_->fd(), rail_);
}

void LentRail::Fail(absl::Status why) {
  failed_ = true;
  thread_->Push({.kind = RailEvent::Kind::kFailed, .rail = this, .status = std::move(why)});
}

bool LentRail::HasWork() const {
  return !failed_ && (rail_->hung_up() || rail_->CanSend() || rail_->CanReceive());
}

void LentRail::OnMarker(uint64_t transfer, uint32_t /*rail*/) {
  thread_->Push({.kind = RailEvent::Kind::kMarker, .rail = this, .id = transfer});
}

void LentRail::OnImmediate(uint32_t /*rail*/, uint32_t immediate) {
  thread_->Push({.kind = RailEvent::Kind::kImmediate, .rail = this, .id = immediate});
}

void LentRail::OnCompletion(uint64_t op, uint32_t /*rail*/, absl::Status status) {
  thread_->Push(
      {.kind = RailEvent::Kind::kCompletion, .rail = this, .id = op, .status = std::move(status)});
}

void LentRail::OnSent(uint32_t /*rail*/) {
  thread_->Push({.kind = RailEvent::Kind::kSent, .rail = this});
}

}  // namespace kvxfer::tcp
