#include "src/backends/faulty/faulty_backend.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/backends/faulty/factory.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace faulty {
namespace {

// Includes the agent's name: two agents with equal options must not draw the same faults in step.
uint64_t SeedOf(uint64_t seed, const std::string& agent) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char c : agent) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

bool Watch(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

FaultyBackend::FaultyBackend(std::unique_ptr<Backend> inner, const FaultOptions& options,
                             uint64_t seed, int epoll_fd, int timer_fd)
    : inner_(std::move(inner)),
      options_(options),
      info_(inner_->Describe()),
      epoll_fd_(epoll_fd),
      timer_fd_(timer_fd),
      random_(seed) {
  info_.name = absl::StrCat("faulty:", info_.name);
  info_.wait_fd = epoll_fd_;
  // Held items are released in another order, so rails no longer keep theirs.
  if (options_.reorder_window > 0 || options_.max_delay > Duration::zero()) {
    info_.capabilities.rail_keeps_order = false;
    info_.capabilities.whole_op_bytes = Capabilities().whole_op_bytes;  // more ops to make worse
  }
  if (options_.rail_down_probability > 0) info_.capabilities.rails_fail_alone = true;
}

FaultyBackend::~FaultyBackend() {
  ready_.Clear();  // destroys accepted endpoints that were not reported
  for (FaultyEndpoint* endpoint : std::exchange(endpoints_, {})) endpoint->Detach();
  ::close(timer_fd_);
  ::close(epoll_fd_);
}

absl::StatusOr<std::unique_ptr<Endpoint>> FaultyBackend::Connect(std::string_view address,
                                                                 const HostIdentity& host) {
  auto inner = inner_->Connect(address, host);
  if (!inner.ok()) return inner.status();
  return std::make_unique<FaultyEndpoint>(this, *std::move(inner), /*accepted=*/false);
}

size_t FaultyBackend::Poll(std::span<Event> out, Input input) {
  if (timer_due_.has_value() && *timer_due_ <= Now()) {
    uint64_t expirations = 0;
    [[maybe_unused]] const ssize_t got = ::read(timer_fd_, &expirations, sizeof(expirations));
    timer_due_.reset();
  }
  if (ready_.size() < out.size()) PollInner(input);
  // Read again, because the events taken in above got their delay from a later clock.
  const Time now = Now();
  for (FaultyEndpoint* endpoint : endpoints_) endpoint->Progress(now);
  return ready_.Take(out);
}

bool FaultyBackend::Arm() {
  if (!ready_.empty()) return false;
  std::optional<Time> due;
  for (const FaultyEndpoint* endpoint : endpoints_) {
    const std::optional<Time> next = endpoint->NextDue();
    if (next.has_value() && (!due.has_value() || *next < *due)) due = next;
  }
  if (due.has_value()) {
    if (*due <= Now()) return false;
    SetTimer(*due);
  }
  return inner_->Arm();
}

void FaultyBackend::Forget(const FaultyEndpoint* endpoint) {
  std::erase(endpoints_, endpoint);
  ready_.Purge(endpoint);
}

void FaultyBackend::PollInner(Input input) {
  const size_t count = inner_->Poll(scratch_, input);
  FollowInner();
  for (size_t i = 0; i < count; ++i) {
    Event event = std::exchange(scratch_[i], Event{});
    if (event.kind == EventKind::kAccepted) {
      Pending pending;
      pending.event = std::move(event);
      auto endpoint = std::make_unique<FaultyEndpoint>(this, std::move(pending.event.accepted),
                                                       /*accepted=*/true);
      pending.event.endpoint = endpoint.get();
      pending.event.accepted = std::move(endpoint);
      Report(std::move(pending));
    } else if (FaultyEndpoint* endpoint = Find(event.endpoint); endpoint != nullptr) {
      endpoint->OnInner(std::move(event));
    }
  }
}

void FaultyBackend::FollowInner() {
  const auto follow = [](auto& mine, const auto& inner) {
    if (mine != inner) mine = inner;
  };
  const BackendInfo& inner = inner_->Describe();
  follow(info_.address, inner.address);
  follow(info_.listen_address, inner.listen_address);
  follow(info_.devices, inner.devices);
}

FaultyEndpoint* FaultyBackend::Find(const Endpoint* inner) const {
  const auto it = std::find_if(endpoints_.begin(), endpoints_.end(),
                               [&](const FaultyEndpoint* e) { return e->inner() == inner; });
  return it == endpoints_.end() ? nullptr : *it;
}

void FaultyBackend::SetTimer(Time due) {
  if (timer_due_.has_value() && *timer_due_ <= due) return;  // the timer fires early enough
  const auto since_epoch = due.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  itimerspec spec{};
  spec.it_value.tv_sec = seconds.count();
  spec.it_value.tv_nsec = (since_epoch - seconds).count();
  ::timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &spec, nullptr);
  timer_due_ = due;
}

}  // namespace faulty

absl::StatusOr<std::unique_ptr<Backend>> MakeFaultyBackend(std::unique_ptr<Backend> inner,
                                                           const BackendContext& context) {
  const auto options = ReadOptions<faulty::FaultOptions>("faulty", context.options);
  if (!options.ok()) return options.status();
  const int epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  const int timer_fd =
      epoll_fd < 0 ? -1 : ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer_fd < 0 || !faulty::Watch(epoll_fd, timer_fd) ||
      !faulty::Watch(epoll_fd, inner->Describe().wait_fd)) {
    const int error = errno;
    if (timer_fd >= 0) ::close(timer_fd);
    if (epoll_fd >= 0) ::close(epoll_fd);
    return absl::ResourceExhaustedError(ToAbsl(ErrnoText("timer of the faulty backend", error)));
  }
  return std::make_unique<faulty::FaultyBackend>(
      std::move(inner), *options, faulty::SeedOf(options->seed, context.options.name), epoll_fd,
      timer_fd);
}

}  // namespace kvxfer
