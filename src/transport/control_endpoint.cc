#include "src/transport/control_endpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::net {
namespace {

// The frames that one Poll takes from one endpoint at most, so that no endpoint starves the others.
constexpr size_t kMaxControlFrames = 256;

}  // namespace

ControlEndpoint::ControlEndpoint(EndpointHub* hub, PeerAddress peer)
    : hub_(hub), state_(State::kDialling), control_(this) {
  const EndpointHub::Settings& settings = hub->settings();
  dialler_.emplace(settings.backend + " peer", std::move(peer), settings.service, 1,
                   settings.connect_timeout, &control_);
}

ControlEndpoint::ControlEndpoint(EndpointHub* hub, Fd control, std::string from)
    : hub_(hub), state_(State::kUp), control_(this), from_(std::move(from)) {
  control_.Adopt(std::move(control));
}

ControlEndpoint::~ControlEndpoint() {
  if (hub_ == nullptr) return;
  control_.Release();
  hub_->Forget(this);
}

void ControlEndpoint::Detach() {
  // The transfers of this endpoint must end even though the backend is destroyed first.
  if (!down()) {
    state_ = State::kDown;
    EndData(
        absl::UnavailableError(absl::StrCat("the ", hub_->settings().backend, " backend is gone")));
  }
  control_.Release();
  OnDetached();
  hub_ = nullptr;
}

std::string ControlEndpoint::Where() const {
  return absl::StrCat(hub_->settings().backend, " peer ", Name());
}

void ControlEndpoint::Dial() {
  dialler_->Start();
  FollowDialler();
}

void ControlEndpoint::FollowDialler() {
  hub_->TimersChanged();
  if (dialler_->state() == Dialler::State::kFailed) return Down(dialler_->status(), false);
  Activate();
  if (dialler_->state() == Dialler::State::kJoined) state_ = State::kGreeting;
}

void ControlEndpoint::GoUp() {
  state_ = State::kUp;
  hub_->TimersChanged();
  Say(EventKind::kConnected);
}

bool ControlEndpoint::Send(std::span<const std::byte> message) {
  if (!up() || message.size() > kMaxMessageBytes) return false;
  absl::StatusOr<bool> taken = control_.Push(ControlKind::kMessage, message);
  if (!taken.ok()) {
    Fail(taken.status());
    return false;
  }
  if (control_.sending()) Activate();
  return *taken;
}

void ControlEndpoint::Tell(std::string_view frame) {
  if (down()) return;
  // An error of the stream shows when it is read, where the endpoint can end safely.
  control_.Push(ControlKind::kFrame, std::as_bytes(std::span(frame))).IgnoreError();
  Activate();
}

std::optional<Time> ControlEndpoint::deadline() const {
  if (down()) return std::nullopt;
  return up() ? DataDeadline() : dialler_->deadline();
}

void ControlEndpoint::OnDeadline(Time now) {
  if (up()) return OnDataDeadline(now);
  // The peer accepted the stream but never sent its hello.
  if (greeting()) return Fail(absl::UnavailableError("the peer did not say what it has"));
  dialler_->OnDeadline();
  FollowDialler();
}

bool ControlEndpoint::HasWork() const {
  if (down()) return false;
  // Until the welcome has been received, the dialler uses the stream.
  if (state_ == State::kDialling) return dialler_->HasWork();
  if (up() && HasDataWork()) return true;
  if (control_.sending() && control_.writable()) return true;
  return control_.readable() || control_.HasFrame();
}

void ControlEndpoint::Work() {
  if (state_ == State::kDialling) {
    dialler_->Work();
    FollowDialler();
    if (!greeting()) return;
  }
  // Data first: the frames below may end the endpoint.
  if (up() && HasDataWork()) WorkData();
  if (down()) return;
  if (absl::Status sent = control_.Flush(); !sent.ok()) return Fail(sent);
  ReceiveFrames();
}

void ControlEndpoint::ReceiveFrames() {
  for (size_t frames = 0; frames < kMaxControlFrames && !down();) {
    absl::StatusOr<std::optional<ControlStream::Frame>> frame = control_.Front();
    if (!frame.ok()) return Fail(frame.status());
    if (frame->has_value()) {
      // A message must be reported in this Poll, because its bytes are valid only until the next
      // one.
      if (hub_->sink().full()) return;
      if (!Take(**frame)) return;
      control_.Pop(**frame);
      ++frames;
      continue;
    }
    // Filling would overwrite the buffer that holds the messages reported in this Poll.
    if (message_poll_ == hub_->poll_number() || !control_.readable()) return;
    absl::StatusOr<bool> got = control_.Fill();
    if (!got.ok()) return Fail(got.status());
    if (!*got) return;
  }
}

bool ControlEndpoint::Take(const ControlStream::Frame& frame) {
  switch (frame.kind) {
    case ControlKind::kMessage: {
      if (!up()) break;
      // The message stays in the stream's buffer until the next Poll.
      message_poll_ = hub_->poll_number();
      Emit({.kind = EventKind::kMessage, .endpoint = this, .message = frame.payload});
      return true;
    }
    case ControlKind::kFrame: {
      const absl::Status status = OnFrame(frame.payload);
      if (status.ok()) return !down();
      Fail(status);
      return false;
    }
    case ControlKind::kClosing: {
      // The reason comes from the peer: make it printable and cut it before it reaches a log.
      const std::string reason =
          Printable({reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()},
                    kMaxPeerTextBytes);
      Fail(absl::UnavailableError(absl::StrCat("the peer closed the connection: ", reason)));
      return false;
    }
    case ControlKind::kReady:
      break;
  }
  Fail(absl::InvalidArgumentError("the peer sent a control frame that has no place here"));
  return false;
}

void ControlEndpoint::Shutdown(absl::Status why) {
  if (why.ok()) why = absl::CancelledError("closed");
  if (!down()) Down(Annotate(why, Where()), true);
}

void ControlEndpoint::Fail(const absl::Status& status) {
  if (down()) return;
  // Unavailable means that the connection is broken, so no goodbye can reach the peer.
  Down(Annotate(status, absl::StrCat(Where(), ", control stream")), !absl::IsUnavailable(status));
}

void ControlEndpoint::Down(absl::Status why, bool tell) {
  // EndData may call back into Down.
  if (std::exchange(ending_, true)) return;
  const bool was_up = up();
  EndData(why);
  state_ = State::kDown;
  if (tell && was_up) {
    // The goodbye must not overtake what is queued, and closing at once would reset the connection.
    // The socket lingers until the peer has read everything.
    const std::string reason = ForPeer(ToStd(why.message()));
    control_.Push(ControlKind::kClosing, std::as_bytes(std::span(reason))).IgnoreError();
    std::string queued = control_.TakeQueued();
    hub_->Linger(control_.Release(), std::move(queued));
  } else {
    control_.Release();
  }
  hub_->TimersChanged();
  why_down_ = std::move(why);
  FinishDown();
}

void ControlEndpoint::FinishDown() {
  // kDown also promises that no byte can be written through this endpoint, so it waits until the
  // data is quiet.
  if (why_down_.ok() || !IsQuiet()) return;
  Say(EventKind::kDown, 0, std::exchange(why_down_, absl::OkStatus()));
}

void ControlEndpoint::Emit(Event event) {
  if (hub_ != nullptr) hub_->sink().Emit(std::move(event));
}

void ControlEndpoint::Say(EventKind kind, uint64_t id, absl::Status status, uint32_t rail) {
  Emit(MakeEvent(kind, this, id, std::move(status), rail));
}

}  // namespace kvxfer::net
