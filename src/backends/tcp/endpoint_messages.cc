// TcpEndpoint: the messages on the control stream.

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::tcp {
namespace {

// The most frames that one Poll handles.
constexpr size_t kMaxControlFrames = 256;

}  // namespace

bool TcpEndpoint::Send(std::span<const std::byte> message) {
  if (!up() || message.size() > kMaxMessageBytes) return false;
  absl::StatusOr<bool> taken = control_.Push(ControlKind::kMessage, message);
  if (!taken.ok()) {
    Fail(taken.status(), "control stream");
    return false;
  }
  if (control_.sending()) Activate();
  return *taken;
}

bool TcpEndpoint::ControlIsQuiet() {
  return std::exchange(landing_due_, false) || ReceiveControl(true) == Control::kQuiet;
}

void TcpEndpoint::ReadControl() {
  if (!up() || control_.HasFrame()) return;
  // Without waiting for epoll to report the socket: a spinning driver expects a message here.
  absl::StatusOr<bool> got = control_.Fill();
  if (!got.ok()) return Fail(got.status(), "control stream");
  if (*got) Activate();
}

// Reports every message that has arrived completely. Reads the socket only until there is one, or
// until kMaxControlFrames frames were handled, because a peer may send nothing but frames that are
// not reported. The messages stay in the buffer until the next Poll, so it is not read again
// before. `look`: read the socket even if no event said that it is readable.
TcpEndpoint::Control TcpEndpoint::ReceiveControl(bool look) {
  if (message_poll_ == backend_->poll_number()) return Control::kMessages;
  for (size_t frames = 0; frames < kMaxControlFrames;) {
    absl::StatusOr<std::optional<net::ControlStream::Frame>> frame = control_.Front();
    if (!frame.ok()) {
      Fail(frame.status(), "control stream");
      return Control::kDown;
    }
    if (frame->has_value()) {
      if (sink().full()) return Control::kMessages;
      if ((*frame)->kind == ControlKind::kFrame) {
        if (!authorized_) return Control::kQuiet;
        // Same rule as for data streams: the agent sees messages that came first before a write
        // takes effect.
        if (message_poll_ == backend_->poll_number()) return Control::kMessages;
      }
      if (OnControlFrame(**frame) == Control::kDown) return Control::kDown;
      control_.Pop(**frame);
      ++frames;
      // The frame was `ready`; what follows it waits until the endpoint is up.
      if (joining()) return Control::kMessages;
      continue;
    }
    if (message_poll_ == backend_->poll_number()) return Control::kMessages;
    if (!look && !control_.readable()) return Control::kQuiet;
    absl::StatusOr<bool> got = control_.Fill();
    if (!got.ok()) {
      Fail(got.status(), "control stream");
      return Control::kDown;
    }
    if (!*got) return Control::kQuiet;
  }
  return Control::kMessages;
}

TcpEndpoint::Control TcpEndpoint::OnControlFrame(const net::ControlStream::Frame& frame) {
  switch (frame.kind) {
    case ControlKind::kMessage: {
      if (!up()) break;
      message_poll_ = backend_->poll_number();
      backend_->Expect(this);
      sink().Emit({.kind = EventKind::kMessage, .endpoint = this, .message = frame.payload});
      return Control::kMessages;
    }
    case ControlKind::kFrame: {
      absl::Status status =
          connecting() ? OnStreamLost(frame.payload) : OnInlineFrame(frame.payload);
      if (status.ok()) return down() ? Control::kDown : Control::kQuiet;
      Fail(status, "control stream");
      return Control::kDown;
    }
    case ControlKind::kReady:
      if (!joining() || ready_ || side_ == Side::kAccepting) break;
      ready_ = true;
      TryGoUp(false);
      if (down()) return Control::kDown;
      return up() ? Control::kQuiet : Control::kMessages;
    case ControlKind::kClosing: {
      const std::string reason =
          Printable({reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()},
                    kMaxPeerTextBytes);
      Fail(absl::UnavailableError(absl::StrCat("the peer closed the connection: ", reason)),
           "control stream");
      return Control::kDown;
    }
  }
  Fail(absl::InvalidArgumentError("the peer sent a control frame that has no place here"),
       "control stream");
  return Control::kDown;
}

}  // namespace kvxfer::tcp
