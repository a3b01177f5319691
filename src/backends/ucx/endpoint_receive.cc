// UcxEndpoint, receiving: puts frames in order, checks them, copies their bytes and emits events.

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/endpoint.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/transport/hello.h"

namespace kvxfer::ucx {
namespace {

// How many reads may wait to be served: more than a peer can have in flight.
constexpr size_t kMaxServed = 1024;

WireRun PieceAt(std::span<const std::byte> body, size_t at) {
  return DecodeWireRun(body.subspan(at).first<kWireRunBytes>());
}

std::string_view AsText(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

absl::Status NotYours() {
  return absl::InvalidArgumentError("the peer sent a frame that is not its to send");
}

}  // namespace

void UcxEndpoint::OnFrame(const FrameHead& head, std::span<const std::byte> body) {
  if (down()) return;
  absl::Status status;
  // This bye comes from a peer that does not know the endpoint and so has no order for it.
  if (head.kind == FrameKind::kBye && head.order == 0) {
    status = Handle(head, body);
  } else {
    switch (incoming_.Put(head, body)) {
      case Resequencer::Place::kKept:
        return;
      case Resequencer::Place::kRefused:
        status = absl::InvalidArgumentError("the peer does not count its frames");
        break;
      case Resequencer::Place::kNext:
        status = Handle(head, body);
        break;
    }
    // The frame may have been the one that early frames waited for.
    while (status.ok() && !down()) {
      const std::optional<Resequencer::Early> early = incoming_.Take();
      if (!early.has_value()) break;
      status = Handle(early->head, std::as_bytes(std::span(early->body)));
    }
  }
  if (!status.ok() && !down()) {
    End(Annotate(status, absl::StrCat("ucx peer ", Name())), true);
  }
}

absl::Status UcxEndpoint::Handle(const FrameHead& head, std::span<const std::byte> body) {
  const bool to_acceptor = head.kind == FrameKind::kWrite || head.kind == FrameKind::kRead ||
                           head.kind == FrameKind::kFence;
  const bool to_dialler = head.kind == FrameKind::kWelcome || head.kind == FrameKind::kAuthorized ||
                          head.kind == FrameKind::kReadData;
  if ((to_acceptor && !accepted()) || (to_dialler && accepted())) return NotYours();
  if (state_ == State::kDialling && head.kind != FrameKind::kWelcome &&
      head.kind != FrameKind::kBye) {
    return NotYours();
  }
  switch (head.kind) {
    case FrameKind::kHello:
      return NotYours();
    case FrameKind::kWelcome:
      return OnWelcome(body);
    case FrameKind::kAuthorized:
      authorized_ = true;
      backend_->Activate(this);
      return absl::OkStatus();
    case FrameKind::kMessage:
      return OnMessage(head, body);
    case FrameKind::kWrite:
      TookData(head);
      return OnWrite(head, body);
    case FrameKind::kRead:
      TookData(head);
      return OnRead(head, body);
    case FrameKind::kReadData:
      TookData(head);
      return OnReadData(head, body);
    case FrameKind::kCredit:
      return OnCredit(head.number);
    case FrameKind::kFence:
      return OnFence(head.transfer);
    case FrameKind::kBye:
      End(absl::UnavailableError(absl::StrCat("ucx peer ", Name(), " closed the connection: ",
                                              Printable(AsText(body), kMaxPeerTextBytes))),
          false);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status UcxEndpoint::OnWelcome(std::span<const std::byte> body) {
  absl::StatusOr<Welcome> welcome = DecodeWelcome(body);
  if (!welcome.ok()) return welcome.status();
  if (state_ != State::kDialling) return NotYours();
  peer_cookie_ = welcome->cookie;
  peer_path_ = welcome->path;
  // Only the peer's worker has seen the cookie that the welcome names.
  path_->set_peer_id(welcome->path);
  state_ = State::kUp;
  backend_->Welcomed(this);
  Emit(EventKind::kConnected);
  backend_->Activate(this);
  return absl::OkStatus();
}

absl::Status UcxEndpoint::OnMessage(const FrameHead& head, std::span<const std::byte> body) {
  const size_t most = accepted() && !authorized_ ? kMaxFirstMessageBytes : kMaxMessageBytes;
  if (partial_.size() + body.size() > most) {
    return absl::InvalidArgumentError("a message beyond the bound");
  }
  partial_ += AsText(body);
  if ((head.flags & kLast) == 0) return absl::OkStatus();
  backend_->events().SayMessage(this, std::exchange(partial_, {}));
  return absl::OkStatus();
}

// Every piece of the frame is checked before the first byte is written. Nothing of a fenced
// transfer is written, and its pieces are not checked: their region may be gone.
absl::Status UcxEndpoint::OnWrite(const FrameHead& head, std::span<const std::byte> body) {
  if (!authorized_) return absl::PermissionDeniedError("remote write before it was authorised");
  if (fences_.IsFenced(head.transfer)) return absl::OkStatus();
  absl::StatusOr<WriteBody> write = DecodeWrite(head.number, body);
  if (!write.ok()) return write.status();
  for (size_t at = 0; at < write->pieces.size(); at += kWireRunBytes) {
    const absl::Status allowed =
        backend_->regions().Check(PieceAt(write->pieces, at), Access::kRemoteWrite).status();
    if (!allowed.ok()) return Annotate(allowed, "remote write refused");
  }
  for (size_t at = 0; at < write->pieces.size(); at += kWireRunBytes) {
    const WireRun piece = PieceAt(write->pieces, at);
    std::memcpy(reinterpret_cast<std::byte*>(piece.address), write->bytes.data(), piece.bytes);
    write->bytes = write->bytes.subspan(piece.bytes);
  }
  if ((head.flags & kLast) != 0 && (head.flags & kImmediate) != 0) {
    backend_->events().Push(
        {.kind = EventKind::kImmediate, .endpoint = this, .immediate = head.immediate});
  }
  return absl::OkStatus();
}

absl::Status UcxEndpoint::OnRead(const FrameHead& head, std::span<const std::byte> body) {
  if (!authorized_) return absl::PermissionDeniedError("remote read before it was authorised");
  if (body.size() % kWireRunBytes != 0 || body.size() > kMaxOpPieces * kWireRunBytes) {
    return net::Damaged("ucx read");
  }
  if (served_.size() >= kMaxServed) return absl::InvalidArgumentError("too many reads at once");
  Serving read{.number = head.number, .transfer = head.transfer};
  read.voided = fences_.IsFenced(head.transfer);
  for (size_t at = 0; at < body.size() && !read.voided; at += kWireRunBytes) {
    read.pieces.push_back(PieceAt(body, at));
    // The region was deregistered since the peer learnt of it. That ends this read alone; every
    // other failed check ends the endpoint.
    if (!backend_->regions().Knows(read.pieces.back().rkey)) read.voided = true;
    if (read.voided) break;
    const absl::Status allowed =
        backend_->regions().Check(read.pieces.back(), Access::kRemoteRead).status();
    if (!allowed.ok()) return Annotate(allowed, "remote read refused");
  }
  served_.push_back(std::move(read));
  backend_->Activate(this);
  return absl::OkStatus();
}

// A read that was fenced here is no longer in reads_: its bytes are dropped.
absl::Status UcxEndpoint::OnReadData(const FrameHead& head, std::span<const std::byte> body) {
  const auto it = reads_.find(head.number);
  if (it == reads_.end()) return absl::OkStatus();
  Reading& read = it->second;
  while (!body.empty() && !read.walk.done()) {
    const Run& run = read.walk.run();
    const size_t bytes = std::min<uint64_t>(body.size(), run.bytes);
    std::memcpy(reinterpret_cast<std::byte*>(run.local), body.data(), bytes);
    body = body.subspan(bytes);
    read.walk.Take(bytes);
  }
  if (!body.empty()) return absl::InvalidArgumentError("more bytes than were asked for");
  if ((head.flags & kLast) == 0) return absl::OkStatus();
  const bool voided = (head.flags & kVoid) != 0;
  if (!voided && !read.walk.done()) {
    return absl::InvalidArgumentError("fewer bytes than were asked for");
  }
  const uint64_t op = read.op.id;
  reads_.erase(it);
  Complete(op,
           voided ? absl::CancelledError("the peer stopped serving the read") : absl::OkStatus());
  return absl::OkStatus();
}

// At most one credit frame is queued; when it is sent it names all bytes taken by then.
void UcxEndpoint::TookData(const FrameHead& head) {
  const bool report_soon = data_taken_ - data_reported_ >= kCreditEvery;
  data_taken_ += ChargeOf(kFrameHeadBytes + head.bytes);
  if (report_soon || data_taken_ - data_reported_ < kCreditEvery) return;
  controls_.push_back({.kind = FrameKind::kCredit});
  backend_->Activate(this);
}

absl::Status UcxEndpoint::OnCredit(uint32_t taken) {
  // Modulo 2^32: the peer cannot acknowledge more than was sent and not acknowledged.
  if (taken - data_acknowledged_ > data_sent_ - data_acknowledged_) {
    return absl::InvalidArgumentError("the peer acknowledges what was not sent");
  }
  data_acknowledged_ = taken;
  backend_->Activate(this);
  return absl::OkStatus();
}

// The marker: no read of the transfer follows, and the initiator no longer wants those that came.
absl::Status UcxEndpoint::OnFence(uint64_t transfer) {
  if (!authorized_) return absl::PermissionDeniedError("a fence before anything was authorised");
  std::erase_if(served_, [&](const Serving& read) { return read.transfer == transfer; });
  EmitFenced(transfer, fences_.OnMarker(transfer, 0));
  return absl::OkStatus();
}

}  // namespace kvxfer::ucx
