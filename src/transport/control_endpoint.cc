#include "src/transport/control_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::net {
namespace {

// The frames that one Poll takes from one endpoint at most, so that no endpoint starves the others.
constexpr size_t kMaxControlFrames = 256;
// The time from the control stream's preamble until the accepting side has reported the endpoint.
// At least 2 s, because the peer's connect_timeout may be longer than this side's.
constexpr Duration kJoinTimeout = std::chrono::seconds(2);

}  // namespace

ControlEndpoint::ControlEndpoint(EndpointHub* hub, PeerAddress peer, uint32_t rails)
    : hub_(hub), state_(State::kDialling), control_(this, &hub->receive_space()) {
  const EndpointHub::Settings& settings = hub->settings();
  dialler_.emplace(settings.backend + " peer", std::move(peer), settings.service, rails,
                   settings.connect_timeout, &control_);
}

ControlEndpoint::ControlEndpoint(EndpointHub* hub, Fd control, std::string from)
    : hub_(hub),
      state_(State::kGreeting),
      control_(this, &hub->receive_space()),
      from_(std::move(from)),
      up_by_(Now() + std::max<Duration>(hub->settings().connect_timeout, kJoinTimeout)) {
  control_.Adopt(std::move(control));
  control_.LimitFrames(kMaxFirstMessageBytes);
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
  control_.Restart();
  OnDetached();
  hub_ = nullptr;
}

std::string ControlEndpoint::Where() const {
  return absl::StrCat(hub_->settings().backend, " peer ", Name());
}

void ControlEndpoint::Reschedule() {
  if (hub_ != nullptr) hub_->Reschedule(this);
}

void ControlEndpoint::Dial() {
  dialler_->Start();
  FollowDialler();
}

void ControlEndpoint::FollowDialler() {
  if (dialler_->state() == Dialler::State::kFailed) return Down(dialler_->status(), false);
  up_by_ = dialler_->deadline();
  Reschedule();
  Activate();
  if (dialler_->state() == Dialler::State::kBusy) return;
  state_ = State::kGreeting;
  OnWelcome();
}

void ControlEndpoint::SetUp() {
  state_ = State::kUp;
  up_by_.reset();
  Reschedule();
}

void ControlEndpoint::GoUp() {
  SetUp();
  Say(EventKind::kConnected);
}

void ControlEndpoint::OnReported() {
  SetUserTimeout(control_.fd(), Dialler::kUserTimeoutMs);
  TuneIfLocal(control_.fd());
  SetUp();
  SayHello();
  Activate();
}

void ControlEndpoint::OnAuthorized() {
  control_.LimitFrames(SIZE_MAX);
  if (hub_ != nullptr) hub_->NotUnproved(this);
}

void ControlEndpoint::Drop(const absl::Status& why) { Down(Annotate(why, Where()), false); }

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
  if (state_ == State::kDialling) return up_by_;
  return Earlier(up_by_, DataDeadline());
}

void ControlEndpoint::OnDeadline(Time now) {
  if (state_ == State::kDialling) {
    dialler_->OnDeadline();
    return FollowDialler();
  }
  if (up_by_ && *up_by_ <= now) {
    if (!connecting()) return Down(absl::DeadlineExceededError("never joined"), false);
    OnGreetingDeadline();
  }
  if (!down()) OnDataDeadline(now);
}

void ControlEndpoint::OnGreetingDeadline() {
  // The peer accepted the stream but never sent its hello.
  Fail(absl::UnavailableError("the peer did not say what it has"));
}

bool ControlEndpoint::HasWork() const {
  if (in_use()) {
    if (control_.sending() && control_.writable()) return true;
    return HasFrames() || HasDataWork();
  }
  // Until the welcome has been received, the dialler uses the stream.
  return state_ == State::kDialling && dialler_->HasWork();
}

bool ControlEndpoint::HasFrames() const {
  if (!control_.HasFrame()) return control_.readable();
  const absl::StatusOr<std::optional<ControlStream::Frame>> frame = control_.Front();
  return !frame.ok() || !MustWait((*frame)->kind, /*after_message=*/false);
}

void ControlEndpoint::Work() {
  if (state_ == State::kDialling) {
    dialler_->Work();
    FollowDialler();
  }
  if (!in_use()) return;
  if (absl::Status sent = control_.Flush(); !sent.ok()) return Fail(sent);
  Turn();
}

void ControlEndpoint::ReadControl() {
  if (!up() || control_.HasFrame()) return;
  absl::StatusOr<bool> got = control_.Fill();
  if (!got.ok()) return Fail(got.status());
  if (*got) Activate();
}

bool ControlEndpoint::ReceiveFrames(bool look) {
  // To fill the stream again would overwrite messages that this Poll has reported.
  if (MessagesReported()) return false;
  for (size_t frames = 0; frames < kMaxControlFrames;) {
    absl::StatusOr<std::optional<ControlStream::Frame>> frame = control_.Front();
    if (!frame.ok()) {
      Fail(frame.status());
      return false;
    }
    const bool after_message = MessagesReported();
    if (frame->has_value()) {
      // A message must be reported in this Poll, because its bytes are valid only until the next
      // one.
      if (hub_->sink().full()) return false;
      if (MustWait((*frame)->kind, after_message)) return !after_message;
      if (!Take(**frame)) return false;
      control_.Pop(**frame);
      ++frames;
      continue;
    }
    if (after_message) return false;
    if (!look && !control_.readable()) return true;
    absl::StatusOr<bool> got = control_.Fill();
    if (!got.ok()) {
      if (!up() || !MustWait(ControlKind::kClosing, after_message)) Fail(got.status());
      return false;
    }
    if (!*got) return true;
  }
  return false;
}

// False: the endpoint is down.
bool ControlEndpoint::Take(const ControlStream::Frame& frame) {
  switch (frame.kind) {
    case ControlKind::kMessage:
      if (!up()) break;
      message_poll_ = hub_->poll_number();
      hub_->Expect(this);
      hub_->sink().Emit({.kind = EventKind::kMessage, .endpoint = this, .message = frame.payload});
      return true;
    case ControlKind::kFrame:
      if (absl::Status status = OnFrame(frame.payload); !status.ok()) Fail(status);
      return !down();
    case ControlKind::kReady:
      if (!TakeReady()) break;
      return !down();
    case ControlKind::kClosing: {
      // The reason comes from the peer: make it printable and cut it before it reaches a log.
      const std::string reason =
          Printable({reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()},
                    kMaxPeerTextBytes);
      Fail(absl::UnavailableError(absl::StrCat("the peer closed the connection: ", reason)));
      return false;
    }
  }
  Fail(absl::InvalidArgumentError("the peer sent a control frame that has no place here"));
  return false;
}

void ControlEndpoint::Shutdown(absl::Status why) {
  if (why.ok()) why = absl::CancelledError("closed");
  if (!down()) Down(Annotate(why, Where()), true);
}

void ControlEndpoint::Fail(const absl::Status& status, std::string_view stream) {
  if (down()) return;
  // Unavailable means that the connection is broken, so no goodbye can reach the peer.
  Down(Annotate(status, absl::StrCat(Where(), ", ", ToAbsl(stream))), !absl::IsUnavailable(status));
}

void ControlEndpoint::Down(absl::Status why, bool tell) {
  // EndData may call back into Down.
  if (std::exchange(ending_, true)) return;
  // Before, the stream is the dialler's, or the hub's.
  tell = tell && in_use();
  // An accepted endpoint that never was up is not known to the agent.
  const bool reported = up() || connecting();
  EndData(why);
  state_ = State::kDown;
  hub_->NotUnproved(this);
  std::vector<Fd> data = ReleaseData();
  if (tell) {
    // The goodbye must not overtake what is queued, and closing at once would reset the connection.
    // The sockets linger until the peer has read everything.
    const std::string reason = ForPeer(ToStd(why.message()));
    control_.Push(ControlKind::kClosing, std::as_bytes(std::span(reason))).IgnoreError();
    std::string queued = control_.TakeQueued();
    hub_->Linger(control_.Release(), std::move(data), std::move(queued));
  } else {
    control_.Release();
  }
  Reschedule();
  if (reported) why_down_ = std::move(why);
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
  if (hub_ != nullptr) hub_->sink().Say(kind, this, id, std::move(status), rail);
}

}  // namespace kvxfer::net
