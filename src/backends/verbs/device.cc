#include "src/backends/verbs/device.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

constexpr size_t kBatch = 32;  // completions per call of ibv_poll_cq
// Receives are reposted this many at a time, with one doorbell; few enough that the others never
// run short.
constexpr uint32_t kRepost = 64;
// Devices report the last receive within some tens of microseconds.
constexpr Duration kLastReceive = std::chrono::milliseconds(20);
// Some drivers never report it: after this many waits in vain, give up.
constexpr int kMaxMissed = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(Ibv* ibv, Listener* listener,
                                                     net::Reactor* reactor, const std::string& name,
                                                     uint8_t ordinal, const VerbsOptions& options) {
  std::unique_ptr<Device> device(new Device(ibv, listener, reactor, name, ordinal, options));
  device->context_ = ibv->Open(name);
  if (device->context_ == nullptr) return OpenError(name, errno);
  if (absl::Status status = device->Prepare(); !status.ok()) return Annotate(status, name);
  return device;
}

Device::Device(Ibv* ibv, Listener* listener, net::Reactor* reactor, std::string name,
               uint8_t ordinal, const VerbsOptions& options)
    : ibv_(ibv),
      listener_(listener),
      reactor_(reactor),
      name_(std::move(name)),
      ordinal_(ordinal),
      options_(options) {}

Device::~Device() {
  if (channel_ != nullptr) reactor_->Remove(channel_->fd);
  if (context_ != nullptr) reactor_->Remove(context_->async_fd);
  const auto report = [&](const char* call, int error) {
    if (error != 0)
      Log(LogLevel::kError, "verbs: device {} is not closed: {}", name_, ErrnoText(call, error));
  };
  if (srq_ != nullptr) report("ibv_destroy_srq", ibv_->DestroySrq(srq_));
  if (receive_cq_ != nullptr) report("ibv_destroy_cq", ibv_->DestroyCq(receive_cq_));
  if (send_cq_ != nullptr) report("ibv_destroy_cq", ibv_->DestroyCq(send_cq_));
  if (channel_ != nullptr) report("ibv_destroy_comp_channel", ibv_->DestroyChannel(channel_));
  if (pd_ != nullptr) report("ibv_dealloc_pd", ibv_->DeallocPd(pd_));
  if (context_ != nullptr) report("ibv_close_device", ibv_->Close(context_));
}

absl::Status Device::Prepare() {
  if (const int error = ibv_->QueryDevice(context_, &attr_); error != 0) {
    return absl::UnavailableError(ErrnoText("ibv_query_device", error));
  }
  for (int number = 1; number <= attr_.phys_port_cnt; ++number) {
    const auto port = static_cast<uint8_t>(number);
    if (!IsWanted(options_, name_, port)) continue;
    ports_.push_back(
        {.info = {.name = absl::StrCat(name_, ":", number), .device = ordinal_, .mtu = IBV_MTU_256},
         .number = port});
    // An unusable port must not prevent the others from being used.
    Refresh(ports_.size() - 1).IgnoreError();
  }
  return MakeQueues();
}

absl::Status Device::MakeQueues() {
  const auto failed = [](const char* call) {
    return absl::UnavailableError(ErrnoText(call, errno));
  };
  pd_ = ibv_->AllocPd(context_);
  if (pd_ == nullptr) return failed("ibv_alloc_pd");
  channel_ = ibv_->CreateChannel(context_);
  if (channel_ == nullptr) return failed("ibv_create_comp_channel");
  receives_ = std::min({options_.receive_depth, static_cast<uint32_t>(attr_.max_srq_wr),
                        static_cast<uint32_t>(attr_.max_cqe)});
  send_cq_ =
      ibv_->CreateCq(context_, attr_.max_cqe < 65536 ? attr_.max_cqe : 65536, this, channel_);
  if (send_cq_ == nullptr) return failed("ibv_create_cq");
  space_ = static_cast<uint32_t>(send_cq_->cqe);
  receive_cq_ = ibv_->CreateCq(context_, static_cast<int>(receives_), this, channel_);
  if (receive_cq_ == nullptr) return failed("ibv_create_cq");
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = receives_;
  srq.attr.max_sge = 1;  // some providers refuse 0, although the receives have none
  srq_ = ibv_->CreateSrq(pd_, &srq);
  if (srq_ == nullptr) return failed("ibv_create_srq");
  // The event is raised when few receives are left, that is, when this side is slow to poll.
  if (absl::Status posted = PostReceives(receives_); !posted.ok()) return posted;
  if (const int error = ibv_->ArmSrqLimit(srq_, receives_ / 8); error != 0) {
    return absl::UnavailableError(ErrnoText("ibv_modify_srq", error));
  }
  if (absl::Status added = reactor_->Add(channel_->fd, &channel_watch_); !added.ok()) return added;
  return reactor_->Add(context_->async_fd, &async_watch_);
}

absl::Status Device::PostReceives(uint32_t count) {
  std::array<ibv_recv_wr, kRepost> requests{};
  while (count > 0) {
    const uint32_t some = std::min(count, kRepost);
    for (uint32_t i = 0; i < some; ++i) {
      requests[i].next = i + 1 < some ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_->PostSrqRecv(srq_, requests.data(), &bad); error != 0) {
      return absl::UnavailableError(ErrnoText("ibv_post_srq_recv", error));
    }
    count -= some;
  }
  return absl::OkStatus();
}

absl::Status Device::Refresh(size_t index) {
  changed_ = true;
  LocalPort& port = ports_[index];
  absl::StatusOr<LocalPort> read = ReadPort(*ibv_, context_, name_, port.number, options_, &port);
  if (!read.ok()) {
    port.active = false;
    port.why = Annotate(read.status(), port.info.name);
    return port.why;
  }
  read->info.device = ordinal_;
  port = *std::move(read);
  if (port.active) return absl::OkStatus();
  return port.why.ok() ? absl::UnavailableError(absl::StrCat(
                             port.info.name,
                             ": the port is not active; look at the cable, the link (ip link set "
                             "... up) and, on InfiniBand, the subnet manager (ibv_devinfo shows "
                             "the state)"))
                       : port.why;
}

void Device::Break(const char* call, int error_number) { Break(ErrnoText(call, error_number)); }

void Device::Break(std::string_view why) {
  if (broken()) return;
  why_broken_ = absl::UnavailableError(absl::StrCat(name_, ": ", ToAbsl(why)));
  // Release: other threads read broken() without a lock and then why_broken_.
  broken_.store(true, std::memory_order_release);
  changed_ = true;
  listener_->OnBroken(*this, why_broken_);
}

size_t Device::Poll(size_t most) {
  if (broken()) return 0;
  std::array<ibv_wc, kBatch> entries;
  size_t total = PollReceived(most);
  for (size_t sent = 0; sent < most;) {
    const auto want = static_cast<int>(std::min(kBatch, most - sent));
    // A queue pair may be destroyed by a listener in this loop. Its entries lie behind those of
    // this batch, so its space is free only once the queue has been read to its end.
    const uint32_t due = std::exchange(space_when_polled_, 0);
    const int n = ibv_->PollCq(send_cq_, want, entries.data());
    if (n < 0) {
      Break("ibv_poll_cq", EIO);
      return total;
    }
    for (int i = 0; i < n; ++i) listener_->OnSendDone(*this, entries[static_cast<size_t>(i)]);
    sent += static_cast<size_t>(n);
    total += static_cast<size_t>(n);
    if (n < want) {
      space_ += due;
      break;
    }
    space_when_polled_ += due;
  }
  return total;
}

size_t Device::PollReceived(size_t most) {
  std::array<ibv_wc, kBatch> entries;
  size_t total = 0;
  while (total < most) {
    const auto want = static_cast<int>(std::min(kBatch, most - total));
    const int n = ibv_->PollCq(receive_cq_, want, entries.data());
    if (n < 0) {
      Break("ibv_poll_cq", EIO);
      return total;
    }
    for (int i = 0; i < n; ++i) listener_->OnReceived(*this, entries[static_cast<size_t>(i)]);
    total += static_cast<size_t>(n);
    taken_ += static_cast<uint32_t>(n);
    if (n < want) break;
  }
  if (taken_ >= RepostFrom()) Repost();
  return total;
}

void Device::Repost() {
  const absl::Status posted = PostReceives(std::exchange(taken_, 0));
  if (!posted.ok()) Break(ToStd(posted.message()));
}

uint32_t Device::RepostFrom() const { return std::clamp(receives_ / 8, 1u, kRepost); }

void Device::DrainReceived() {
  while (!broken() && PollReceived(kBatch) > 0) {
  }
}

void Device::Arm() {
  if (broken()) return;
  for (auto [cq, armed] : {std::pair(send_cq_, &send_armed_), {receive_cq_, &receive_armed_}}) {
    if (*armed) continue;
    if (const int error = ibv_->ReqNotify(cq); error != 0) {
      Break("ibv_req_notify_cq", error);
      return;
    }
    *armed = true;
  }
}

void Device::OnChannel() {
  if (!std::exchange(channel_ready_, false)) return;
  ibv_cq* cq = nullptr;
  int error = 0;
  while ((error = ibv_->NextCqEvent(channel_, &cq)) == 0) {
    (cq == send_cq_ ? send_armed_ : receive_armed_) = false;
  }
  channel_ready_ = error != EAGAIN;
}

// This side was slow to poll. The limit is armed again only once all receives are back: below the
// limit the device would raise the event again at once.
void Device::OnFewReceives() {
  Log(LogLevel::kDebug, "verbs: {}: few receives are left", name_);
  DrainReceived();
  if (!broken()) Repost();
  if (broken()) return;
  const int error = ibv_->ArmSrqLimit(srq_, receives_ / 8);
  if (error != 0) Break("ibv_modify_srq", error);
}

// If an event could not be read, look again: epoll reports the descriptor only once.
void Device::ReadEvents() {
  ibv_async_event event{};
  int error = 0;
  while ((error = ibv_->NextAsyncEvent(context_, &event)) == 0) {
    DeviceEvent& read = events_.emplace_back(DeviceEvent{.type = event.event_type});
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED:
        read.queue_pair = event.element.qp->qp_num;
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_GID_CHANGE:
        read.port = static_cast<uint8_t>(event.element.port_num);
        break;
      default:
        break;
    }
  }
  async_ready_ = error != EAGAIN;
}

void Device::OnAsync() {
  if (async_ready_) ReadEvents();
  while (!events_.empty()) {
    const DeviceEvent event = events_.front();
    events_.pop_front();
    if (event.type == IBV_EVENT_SRQ_LIMIT_REACHED) {
      OnFewReceives();
      // The device does report last receives, so waiting for them is worth while.
    } else if (event.type == IBV_EVENT_QP_LAST_WQE_REACHED) {
      missed_ = 0;
    } else {
      listener_->OnAsync(*this, event);
    }
  }
}

void Device::AwaitLastReceive(uint32_t number) {
  if (broken() || missed_ == kMaxMissed) return;
  const Time end = Now() + kLastReceive;
  for (;;) {
    ReadEvents();
    const size_t told = std::erase_if(events_, [number](const DeviceEvent& event) {
      return event.type == IBV_EVENT_QP_LAST_WQE_REACHED && event.queue_pair == number;
    });
    if (told > 0) {
      missed_ = 0;
      return;
    }
    const Duration left = end - Now();
    if (left <= Duration{}) break;
    pollfd look{.fd = context_->async_fd, .events = POLLIN, .revents = 0};
    ::poll(&look, 1, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
  }
  if (++missed_ == kMaxMissed) {
    Log(LogLevel::kDebug, "verbs: {} does not tell when a queue pair has taken its last receive",
        name_);
  }
}

}  // namespace kvxfer::verbs
