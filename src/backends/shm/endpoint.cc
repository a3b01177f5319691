#include "src/backends/shm/endpoint.h"

#include <utility>
#include <vector>

#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::shm {
namespace {

// For one connection, so that a peer that sends a lot does not starve the others.
constexpr size_t kFramesPerPoll = 32;
// Level-triggered: what one Poll leaves in the socket is reported to the next.
constexpr uint32_t kReadable = EPOLLIN | EPOLLRDHUP;

}  // namespace

ShmEndpoint::ShmEndpoint(Hub* hub, UniqueFd socket)
    : hub_(hub), channel_(std::move(socket), hub->receive_buffer.get()) {}

ShmEndpoint::~ShmEndpoint() {
  Unwatch();
  channel_.Close();
  hub_->events.Purge(this);
}

absl::Status ShmEndpoint::WatchSocket() {
  const absl::Status added = hub_->reactor->Add(channel_.fd(), this, kReadable);
  watching_socket_ = added.ok();
  return Annotate(added, "shm");
}

absl::Status ShmEndpoint::WatchPeer(PeerProcess peer) {
  peer_ = std::move(peer);
  const absl::Status added = hub_->reactor->Add(peer_.pidfd(), &exit_watcher_, EPOLLIN);
  watching_process_ = added.ok();
  return Annotate(added, "shm");
}

void ShmEndpoint::StopReceiving() {
  if (std::exchange(watching_socket_, false)) hub_->reactor->Remove(channel_.fd());
  if (std::exchange(watching_rings_, false)) std::erase(hub_->ringed, this);
}

void ShmEndpoint::WatchForSpace() {
  if (watching_socket_) return UpdateSocketWatch();
  wants_write_ = watching_socket_ = hub_->reactor->Add(channel_.fd(), this, EPOLLOUT).ok();
}

void ShmEndpoint::Unwatch() {
  StopReceiving();
  if (std::exchange(watching_process_, false)) hub_->reactor->Remove(peer_.pidfd());
}

absl::Status ShmEndpoint::OfferRings() {
  absl::Status made = hub_->ring_choice.Wanted();
  if (made.ok()) made = channel_.OfferRings(hub_->bell.get());
  UpdateSocketWatch();
  if (!made.ok()) return DoWithoutRings(made);
  WatchRings();
  return absl::OkStatus();
}

absl::Status ShmEndpoint::TakeRings(const Channel::Frame& frame) {
  absl::Status taken = hub_->ring_choice.Wanted();
  if (taken.ok()) taken = channel_.TakeRings(frame, hub_->bell.get());
  UpdateSocketWatch();
  if (absl::IsInternal(taken)) return taken;
  if (taken.ok()) {
    WatchRings();
  } else if (absl::Status must = DoWithoutRings(taken); !must.ok()) {
    Shutdown(must);
  }
  return absl::OkStatus();
}

absl::Status ShmEndpoint::DoWithoutRings(const absl::Status& why) {
  SendFrame(FrameType::kNoRings, ForPeer(ToStd(why.message())));
  return Annotate(hub_->ring_choice.DoWithout(why), "shm");
}

absl::Status ShmEndpoint::OnRingFrame(Channel::Frame& frame) {
  const FrameType type = frame.type;
  const std::string text = Printable(frame.body, kMaxPeerTextBytes);
  absl::Status taken = channel_.TakeRingFrame(frame);
  UpdateSocketWatch();
  if (!taken.ok()) return taken;
  absl::Status none;
  if (type == FrameType::kNoRings) {
    none = absl::UnavailableError(absl::StrCat("process ", peer_.pid(), " has none: ", text));
  } else if (type == FrameType::kBell && channel_.has_rings() && !channel_.sends_through_ring()) {
    none = absl::ResourceExhaustedError("no descriptor left for the peer's bell");
  }
  if (none.ok()) return none;
  if (absl::Status must = hub_->ring_choice.DoWithout(none); !must.ok()) {
    Shutdown(Annotate(must, "shm"));
  }
  return absl::OkStatus();
}

void ShmEndpoint::WatchRings() {
  if (!channel_.has_rings() || std::exchange(watching_rings_, true)) return;
  hub_->ringed.push_back(this);
}

bool ShmEndpoint::Send(std::span<const std::byte> message) {
  if (down_ || closing_ || message.size() > kMaxMessageBytes) return false;
  // The message may be metadata that name a new file: it must not overtake the file.
  hub_->SendNewFiles();
  const bool accepted = channel_.SendMessage(message);
  UpdateSocketWatch();
  return accepted;
}

void ShmEndpoint::SendFrame(FrameType type, std::string_view body, int file) {
  channel_.SendFrame(type, body, file);
  UpdateSocketWatch();
}

void ShmEndpoint::UpdateSocketWatch() {
  if (!watching_socket_ || wants_write_ == channel_.socket_queued()) return;
  wants_write_ = channel_.socket_queued();
  hub_->reactor->Change(channel_.fd(), this, wants_write_ ? kReadable | EPOLLOUT : kReadable);
}

void ShmEndpoint::OnReady(uint32_t) {
  if (down_) return;
  FlushQueue();
  if (!down_) Drain(kFramesPerPoll);
}

void ShmEndpoint::OnExit() {
  if (down_) return;
  // What the peer sent before it died still counts.
  while (Drain(kFramesPerPoll)) {
  }
  if (!down_) OnEnd(EndCause());
}

void ShmEndpoint::FlushQueue() {
  if (!channel_.queued()) return;
  channel_.Flush();
  UpdateSocketWatch();
  if (!channel_.queued()) OnFlushed();
}

void ShmEndpoint::PollRing() {
  if (!channel_.queued() && !channel_.ring_filled()) return;
  FlushQueue();
  for (size_t i = 0; i < kFramesPerPoll && !down_ && channel_.ring_filled(); ++i) {
    Channel::Frame frame;
    const Channel::Got got = channel_.ReceiveFromRing(frame);
    if (got == Channel::Got::kNothing) return;
    if (got == Channel::Got::kEnd) return OnEnd(EndCause());
    if (!HandleFrame(frame)) return;
  }
}

bool ShmEndpoint::Drain(size_t frames) {
  for (size_t i = 0; i < frames && !down_; ++i) {
    Channel::Frame frame;
    switch (channel_.Receive(frame)) {
      case Channel::Got::kNothing:
        return false;
      case Channel::Got::kEnd:
        OnEnd(EndCause());
        return false;
      case Channel::Got::kFrame:
        if (!HandleFrame(frame)) return false;
        break;
    }
  }
  return !down_;
}

bool ShmEndpoint::HandleFrame(Channel::Frame& frame) {
  if (frame.type == FrameType::kMessage && peer_.pid() != 0) {
    if (partial_.size() + frame.body.size() > max_message_) {
      OnEnd(absl::InternalError(
          absl::StrCat("shm: process ", peer_.pid(), " sent a message beyond the bound")));
      return false;
    }
    if (partial_.empty()) partial_ = hub_->events.TakeSpare();
    partial_.append(frame.body);
    // After Shutdown only the end of the connection matters.
    if (!frame.more && !closing_) hub_->events.SayMessage(this, std::move(partial_));
    if (!frame.more) partial_.clear();
    return true;
  }
  if (frame.type == FrameType::kBye) {
    said_goodbye_ = true;
    goodbye_ = Printable(frame.body, kMaxPeerTextBytes);
    return true;
  }
  const bool of_rings = frame.type == FrameType::kBell || frame.type == FrameType::kGrow ||
                        frame.type == FrameType::kNotGrown || frame.type == FrameType::kNoRings;
  const absl::Status good = of_rings && peer_.pid() != 0 ? OnRingFrame(frame) : OnFrame(frame);
  if (!good.ok() && !down_) OnEnd(good);
  return good.ok();
}

absl::Status ShmEndpoint::EndCause() const {
  if (said_goodbye_) {
    return absl::UnavailableError(
        absl::StrCat("shm: process ", peer_.pid(), " closed the connection: ", goodbye_));
  }
  if (peer_.pid() == 0) return absl::UnavailableError("shm: the connection ended before it began");
  // The kernel closes a dying process's files shortly before the pidfd shows the exit.
  return absl::UnavailableError(absl::StrCat("shm: process ", peer_.pid(), " exited",
                                             peer_.Exited() ? "" : " or dropped the connection"));
}

void ShmEndpoint::GoDown(const absl::Status& why) {
  if (down_) return;
  down_ = true;
  Unwatch();
  channel_.Close();
  hub_->events.Say(EventKind::kDown, this, 0, why);
}

}  // namespace kvxfer::shm
