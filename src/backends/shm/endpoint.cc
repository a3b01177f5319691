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

ShmEndpoint::ShmEndpoint(Hub* hub, UniqueFd socket) : hub_(hub), channel_(std::move(socket)) {}

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

void ShmEndpoint::Unwatch() {
  if (std::exchange(watching_socket_, false)) hub_->reactor->Remove(channel_.fd());
  if (std::exchange(watching_process_, false)) hub_->reactor->Remove(peer_.pidfd());
  if (std::exchange(watching_rings_, false)) std::erase(hub_->ringed, this);
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
  for (size_t i = 0; i < kFramesPerPoll && !down_; ++i) {
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
  const absl::Status good = OnFrame(frame);
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
