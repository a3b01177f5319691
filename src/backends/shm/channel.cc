#include "src/backends/shm/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/transport/unix_socket.h"

namespace kvxfer::shm {
namespace {

// Beyond this SendMessage returns false. Control frames are bounded by the objects that they refer
// to.
constexpr size_t kMaxQueuedBytes = 1024 * 1024;
constexpr int kSocketBufferBytes = 1024 * 1024;

// The body of a whole frame, where it is a kFile.
std::optional<FileBody> FileIn(std::string_view frame) {
  const auto header = wire::TryDecode<FrameHeader>(frame.substr(0, kFrameHeaderBytes));
  if (!header || header->type != FrameType::kFile) return std::nullopt;
  return wire::TryDecode<FileBody>(frame.substr(kFrameHeaderBytes));
}

// A kFile whose descriptor could not be sent says why; other frames stay as they are.
std::string WithError(const std::string& frame, int error) {
  auto file = FileIn(frame);
  if (!file) return frame;
  file->error = error;
  return frame.substr(0, kFrameHeaderBytes) + wire::Encode(*file);
}

// A peer that breaks the rules is Internal in this backend.
absl::Status BrokenRules(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InternalError(absl::StrCat("shm: ", status.message()));
}

}  // namespace

Channel::Channel(UniqueFd socket, Buffer* buffer)
    : socket_(std::move(socket)), owner_(getpid()), buffer_(buffer) {
  // The kernel limits it to net.core.wmem_max.
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof(int));
}

bool Channel::SendMessage(std::span<const std::byte> message) {
  if (broken_ || queued_bytes_ + rings_.queued_bytes() >= kMaxQueuedBytes) return false;
  if (rings_.ready()) {
    rings_.Send(message, SentBefore());
    return true;
  }
  std::string_view rest(reinterpret_cast<const char*>(message.data()), message.size());
  do {
    const std::string_view part = rest.substr(0, kPartBytes);
    rest.remove_prefix(part.size());
    Enqueue(FrameType::kMessage, !rest.empty(), part, -1);
  } while (!rest.empty());
  return true;
}

void Channel::SendFrame(FrameType type, std::string_view body, int file) {
  Enqueue(type, false, body, file);
}

void Channel::Enqueue(FrameType type, bool more, std::string_view body, int file) {
  if (broken_ || !socket_.valid()) return;
  const std::string header = wire::Encode(FrameHeader{.type = type, .more = more ? 1u : 0u});
  // Nothing may overtake the queue: a memfd comes before the message that refers to it.
  if (queue_.empty()) {
    const Sent sent = TrySend(header, body, file);
    if (sent != Sent::kLater) return;
  }
  Queued queued;
  queued.bytes = header + std::string(body);
  // The caller's descriptor may be closed before the frame is sent.
  if (file >= 0) queued.file = UniqueFd(fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (file >= 0 && !queued.file.valid()) queued.bytes = WithError(queued.bytes, errno);
  queued_bytes_ += queued.bytes.size();
  queue_.push_back(std::move(queued));
}

void Channel::Flush() {
  while (!queue_.empty() && !broken_) {
    const Queued& front = queue_.front();
    if (TrySend({}, front.bytes, front.file.get()) == Sent::kLater) return;
    queued_bytes_ -= front.bytes.size();
    queue_.pop_front();
  }
  if (broken_) return Discard();
  rings_.Flush(frames_sent_);
}

void Channel::Discard() {
  queue_.clear();
  queued_bytes_ = 0;
  rings_.Discard();
}

Channel::Sent Channel::TrySend(std::string_view header, std::string_view body, int file) {
  const int error = net::SendPacket(socket_.get(), header, body, file);
  if (error == 0) {
    ++frames_sent_;
    return Sent::kYes;
  }
  if (net::PassesLater(error)) return Sent::kLater;
  if (file >= 0 && error != EPIPE && error != ECONNRESET && error != ENOTCONN) {
    // The kernel passes no more descriptors (for example ETOOMANYREFS): the peer is sent the error
    // instead.
    return TrySend({}, WithError(std::string(header) + std::string(body), error), -1);
  }
  broken_ = true;
  return Sent::kNever;
}

Channel::Got Channel::Receive(Frame& frame) {
  if (const Got got = ReceiveFromRing(frame); got != Got::kNothing) return got;
  const Got got = ReceiveFromSocket(frame);
  // The other side may have put something into the ring before it closed the socket.
  if (got == Got::kEnd && ReceiveFromRing(frame) == Got::kFrame) return Got::kFrame;
  return got;
}

Channel::Got Channel::ReceiveFromRing(Frame& frame) {
  net::RingPair::Part part;
  switch (rings_.Receive(frames_received_, *buffer_, part)) {
    case net::RingPair::Got::kNothing:
      return Got::kNothing;
    case net::RingPair::Got::kDamaged:
      return Damaged(frame);
    case net::RingPair::Got::kBehind: {
      // The sender had sent them before this record, so they are in the socket already.
      bool empty = false;
      const Got got = ReceiveFromSocket(frame, &empty);
      return empty ? Damaged(frame) : got;
    }
    case net::RingPair::Got::kPart:
      break;
  }
  frame.type = FrameType::kMessage;
  frame.more = part.more;
  frame.body = part.body;
  return Got::kFrame;
}

// Reported once: from now on only the socket is read, which brings the end.
Channel::Got Channel::Damaged(Frame& frame) {
  rings_.Distrust();
  frame.type = FrameType::kDamaged;
  frame.body = {};
  return Got::kFrame;
}

void Channel::PassRingFrame(net::RingFrame frame, int file) {
  switch (frame) {
    case net::RingFrame::kRings:
      return SendFrame(FrameType::kRing, {}, file);
    case net::RingFrame::kBell:
      // One wake-up in the queue is enough, so a sender that reads nothing gets no queue of them.
      if (file < 0 && socket_queued()) return;
      return SendFrame(FrameType::kBell, {}, file);
    case net::RingFrame::kGrow:
      return SendFrame(FrameType::kGrow, {}, file);
    case net::RingFrame::kNotGrown:
      return SendFrame(FrameType::kNotGrown, {});
  }
}

absl::Status Channel::TakeRings(const Frame& frame, int bell) {
  return BrokenRules(rings_.Take(frame.file, bell));
}

absl::Status Channel::TakeRingFrame(Frame& frame) {
  switch (frame.type) {
    case FrameType::kBell:
      return BrokenRules(rings_.TakeBell(std::move(frame.file)));
    case FrameType::kGrow:
      return BrokenRules(rings_.TakeGrowth(frame.file));
    case FrameType::kNotGrown:
      return BrokenRules(rings_.TakeNotGrown(SentBefore()));
    default:
      return BrokenRules(rings_.TakeNone());
  }
}

Channel::Got Channel::ReceiveFromSocket(Frame& frame, bool* empty) {
  if (!socket_.valid()) return Got::kEnd;
  net::ReceivedPacket got = net::ReceivePacket(socket_.get(), *buffer_);
  if (got.bytes < 0) {
    if (empty != nullptr) *empty = got.error == EAGAIN;
    return got.error == EAGAIN || got.error == ENOMEM ? Got::kNothing : Got::kEnd;
  }
  if (got.bytes == 0 && OtherSideClosed()) return Got::kEnd;
  ++frames_received_;
  frame.file = std::move(got.file);
  frame.file_lost = got.file_lost;
  const std::string_view text(buffer_->data(), static_cast<size_t>(got.bytes));
  const auto header = wire::TryDecode<FrameHeader>(text.substr(0, kFrameHeaderBytes));
  if (!header || got.cut) {
    frame.type = FrameType::kDamaged;
    return Got::kFrame;
  }
  frame.type = header->type;
  frame.more = header->more != 0;
  frame.body = text.substr(kFrameHeaderBytes);
  return Got::kFrame;
}

// An empty frame also reads as 0 bytes, and must not be mistaken for the end.
bool Channel::OtherSideClosed() const {
  pollfd fd{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&fd, 1, 0) == 1;
}

bool Channel::DropQueuedFile(uint64_t id) {
  for (auto at = queue_.begin(); at != queue_.end(); ++at) {
    const auto file = FileIn(at->bytes);
    if (!file || file->id != id) continue;
    queued_bytes_ -= at->bytes.size();
    queue_.erase(at);
    return true;
  }
  return false;
}

void Channel::HalfClose() {
  if (socket_.valid() && getpid() == owner_) shutdown(socket_.get(), SHUT_WR);
  broken_ = true;
}

void Channel::Close() {
  if (socket_.valid() && getpid() == owner_) shutdown(socket_.get(), SHUT_RDWR);
  socket_.Reset();
  rings_.Close();
  Discard();
  broken_ = true;
}

}  // namespace kvxfer::shm
