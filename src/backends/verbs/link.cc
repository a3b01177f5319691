#include "src/backends/verbs/link.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/core/strings.h"

namespace kvxfer::verbs {
namespace {

// Of one Poll.
constexpr size_t kMaxControlFrames = 256;

}  // namespace

Link::Link(VerbsBackend* backend, State state) : backend_(backend), state_(state), control_(this) {}

Link::~Link() {
  if (backend_ == nullptr) return;
  control_.Release();
  backend_->destroyer().Forget(this);
  backend_->Forget(this);
}

void Link::Detach() {
  if (!down()) {
    state_ = State::kDown;
    EndData(absl::UnavailableError("the verbs backend is gone"));
  }
  control_.Release();
  backend_->destroyer().Forget(this);
  backend_ = nullptr;
}

net::Reactor& Link::reactor() { return backend_->reactor(); }
void Link::Activate() { backend_->Activate(this); }

bool Link::Send(std::span<const std::byte> message) {
  if (!up() || message.size() > net::kMaxMessageBytes) return false;
  absl::StatusOr<bool> taken = control_.Push(net::ControlKind::kMessage, message);
  if (!taken.ok()) {
    Fail(taken.status());
    return false;
  }
  if (control_.sending()) Activate();
  return *taken;
}

void Link::Tell(const Blob& blob) {
  if (down()) return;
  // An error shows when the stream is read.
  control_.Push(net::ControlKind::kFrame, Encode(blob)).IgnoreError();
  Activate();
}

bool Link::HasWork() const {
  if (down()) return false;
  if (control_.sending() && control_.writable()) return true;
  return control_.readable() || control_.HasFrame();
}

void Link::Work() {
  if (down() || !WorkBefore() || down()) return;
  if (absl::Status sent = control_.Flush(); !sent.ok()) return Fail(sent);
  for (size_t frames = 0; frames < kMaxControlFrames && !down();) {
    absl::StatusOr<std::optional<net::ControlStream::Frame>> frame = control_.Front();
    if (!frame.ok()) return Fail(frame.status());
    if (frame->has_value()) {
      // A message must be reported in this Poll, for its bytes are only valid until the next.
      if (backend_->sink().full()) return;
      if (!OnFrame(**frame)) return;
      control_.Pop(**frame);
      ++frames;
      continue;
    }
    // The buffer that reported messages lie in is left alone until the next Poll.
    if (message_poll_ == backend_->poll_number() || !control_.readable()) return;
    absl::StatusOr<bool> got = control_.Fill();
    if (!got.ok()) return Fail(got.status());
    if (!*got) return;
  }
}

bool Link::OnFrame(const net::ControlStream::Frame& frame) {
  switch (frame.kind) {
    case net::ControlKind::kMessage: {
      if (!up()) break;
      message_poll_ = backend_->poll_number();
      Emit({.kind = EventKind::kMessage, .endpoint = this, .message = frame.payload});
      return true;
    }
    case net::ControlKind::kFrame: {
      absl::StatusOr<Blob> blob = Decode(frame.payload);
      const absl::Status status = blob.ok() ? OnBlob(*blob) : blob.status();
      if (status.ok()) return !down();
      Fail(status);
      return false;
    }
    case net::ControlKind::kClosing: {
      const std::string reason(reinterpret_cast<const char*>(frame.payload.data()),
                               frame.payload.size());
      Fail(absl::UnavailableError(absl::StrCat("the peer closed the connection: ", reason)));
      return false;
    }
    case net::ControlKind::kReady:
      break;
  }
  Fail(absl::InvalidArgumentError("the peer sent a control frame that has no place here"));
  return false;
}

void Link::Shutdown(absl::Status why) {
  if (why.ok()) why = absl::CancelledError("closed");
  if (!down()) Down(Annotate(why, absl::StrCat("verbs peer ", Name())), true);
}

void Link::Fail(const absl::Status& status) {
  if (down()) return;
  Down(Annotate(status, absl::StrCat("verbs peer ", Name(), ", control stream")),
       !absl::IsUnavailable(status));
}

void Link::Down(absl::Status why, bool tell) {
  if (std::exchange(passed_on_, true)) return;
  const bool was_up = up();
  EndData(why);
  state_ = State::kDown;
  if (tell && was_up) {
    constexpr size_t kMaxReason = 1024;
    const std::string reason(why.message().substr(0, kMaxReason));
    control_.Push(net::ControlKind::kClosing, std::as_bytes(std::span(reason))).IgnoreError();
    std::string queued = control_.TakeQueued();
    backend_->Linger(control_.Release(), std::move(queued));
  } else {
    control_.Release();
  }
  backend_->TimersChanged();
  why_down_ = std::move(why);
  FinishDown();
}

// Until then bytes may still land, or be read.
void Link::FinishDown() {
  if (why_down_.ok() || !IsQuiet()) return;
  Emit(EventKind::kDown, 0, std::exchange(why_down_, absl::OkStatus()));
}

void Link::Emit(Event event) {
  if (backend_ != nullptr) backend_->sink().Emit(std::move(event));
}

void Link::Emit(EventKind kind, uint64_t id, absl::Status status) {
  Emit({.kind = kind, .endpoint = this, .id = id, .status = std::move(status)});
}

void Link::EmitRail(EventKind kind, uint32_t rail, absl::Status status) {
  Emit({.kind = kind, .endpoint = this, .rail = rail, .status = std::move(status)});
}

}  // namespace kvxfer::verbs
