#include "src/backends/verbs/control_pair.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/strings.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {

ControlPair::ControlPair(VerbsBackend* backend, Client* client, std::unique_ptr<QueuePair> pair,
                         std::string where)
    : backend_(backend),
      client_(client),
      where_(std::move(where)),
      device_(&pair->device()),
      pair_(std::move(pair)),
      address_(pair_->address()),
      joiner_(net::kMaxMessageBytes) {}

ControlPair::~ControlPair() { Destroy(nullptr); }

MessageBuffers& ControlPair::buffers() const { return backend_->messages().of(*device_); }

absl::Status ControlPair::Open() {
  if (device_->space() < kDepths.sends + kDepths.receives) {
    return absl::ResourceExhaustedError(
        absl::StrCat(device_->name(), ": its completion queue is full"));
  }
  slot_ = backend_->TakeSlot(this, first_);
  if (!slot_) return absl::ResourceExhaustedError("verbs: there are too many rails");
  next_ = first_;
  device_->TakeSpace(kDepths.sends);
  for (uint32_t i = 0; i < SendCredit::kFewest + 1; ++i) {
    absl::StatusOr<MessageBuffer> buffer = buffers().Take();
    if (!buffer.ok()) return buffer.status();
    if (absl::Status status = PostReceive(*buffer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// --- receiving -----------------------------------------------------------------------------------

absl::Status ControlPair::PostReceive(const MessageBuffer& buffer) {
  const uint64_t number = next_++;
  ibv_sge element{
      .addr = buffer.address(), .length = uint32_t{kMessageBufferBytes}, .lkey = buffer.lkey};
  ibv_recv_wr request{};
  request.wr_id = WorkId{.slot = *slot_, .number = number, .last = true}.Encode();
  request.sg_list = &element;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = device_->ibv().PostRecv(pair_->get(), &request, &bad); error != 0) {
    buffers().Give(buffer);
    return absl::UnavailableError(absl::StrCat(where_, ": ", ErrnoText("ibv_post_recv", error)));
  }
  device_->TakeSpace(1);
  receives_.push_back({.number = number, .buffer = buffer});
  return absl::OkStatus();
}

void ControlPair::OnReceived(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) {
    return Fail(CompletionError(where_, wc.qp_num, "a receive", wc.status, wc.vendor_err));
  }
  Receive receive = receives_.front();
  receives_.erase(receives_.begin());
  device_->GiveSpace(1);
  receive.bytes = std::min<size_t>(wc.byte_len, kMessageBufferBytes);
  arrived_.push_back(receive);
  client_->OnPairWork();
}

absl::Status ControlPair::Take(const Receive& receive) {
  const std::span<const std::byte> bytes = receive.buffer.bytes().first(receive.bytes);
  const absl::StatusOr<PartHead> head = DecodePartHead(bytes);
  if (!head.ok()) return head.status();
  if (!credit_.OnReport(head->report)) {
    return absl::InvalidArgumentError("a SEND with a report that cannot be");
  }
  OnTaken();
  // An old part came by the control stream too.
  if (head->kind == PartKind::kCredit || credit_.IsOld(head->number)) return absl::OkStatus();
  if (!credit_.OnPart(head->number, head->waited)) {
    return absl::InvalidArgumentError("a part of a message without credit, or one is missing");
  }
  return Join(bytes.subspan(kPartHeadBytes), head->kind == PartKind::kMore);
}

absl::Status ControlPair::Join(std::span<const std::byte> part, bool more) {
  const absl::StatusOr<bool> whole = joiner_.Add(part, more);
  if (!whole.ok()) return whole.status();
  if (*whole) client_->OnPairMessage(joiner_.TakeMessage());
  return absl::OkStatus();
}

// The peer has taken parts, so the device no longer reads them.
void ControlPair::OnTaken() {
  while (unacknowledged_.size() > credit_.sent() - credit_.taken()) {
    buffers().Give(unacknowledged_.front().buffer);
    unacknowledged_.erase(unacknowledged_.begin());
  }
}

// What a SEND took is posted again first, so that the peer never has less than it has to.
absl::Status ControlPair::PostReceivesAgain(const MessageBuffer& buffer, bool of_part) {
  if (of_part && credit_.to_post() == 0) {
    buffers().Give(buffer);
    return absl::OkStatus();
  }
  if (absl::Status status = PostReceive(buffer); !status.ok()) return status;
  if (of_part) credit_.OnPosted();
  while (credit_.to_post() > 0 && device_->space() > kDepths.sends) {
    absl::StatusOr<MessageBuffer> more = buffers().Take();
    // Without memory for more of them the peer waits more often.
    if (!more.ok()) return absl::OkStatus();
    if (absl::Status status = PostReceive(*more); !status.ok()) return status;
    credit_.OnPosted();
  }
  return absl::OkStatus();
}

absl::Status ControlPair::TakePart(const ControlPart& part) {
  // It came over the queue pair too.
  if (credit_.IsOld(part.number)) return absl::OkStatus();
  if (part.number != credit_.received()) {
    return absl::InvalidArgumentError("a part of a message is missing");
  }
  credit_.OnOther();
  return Join(std::as_bytes(std::span(part.bytes)), part.more);
}

absl::Status ControlPair::Work(bool deliver) {
  while (deliver && failure_.ok() && !arrived_.empty() && client_->TakesMessages()) {
    const Receive receive = arrived_.front();
    arrived_.erase(arrived_.begin());
    const uint32_t before = credit_.received();
    if (absl::Status status = Take(receive); !status.ok()) {
      buffers().Give(receive.buffer);
      return status;
    }
    const bool of_part = credit_.received() != before;
    if (absl::Status status = PostReceivesAgain(receive.buffer, of_part); !status.ok()) {
      Fail(std::move(status));
    }
  }
  SendBacklog();
  SendCreditIfDue();
  return absl::OkStatus();
}

bool ControlPair::HasWork(bool deliver) const {
  return !failure_.ok() || (deliver && !arrived_.empty()) || (!backlog_.empty() && CanPostPart()) ||
         (credit_.due() && posted_.size() < kDepths.sends);
}

// --- its end -------------------------------------------------------------------------------------

void ControlPair::OnDone(const WorkId& id, const ibv_wc& wc) {
  if (id.number < first_) return;  // of an earlier owner of the slot
  if (id.last) return OnReceived(wc);
  if (wc.status == IBV_WC_SUCCESS) return OnSent(id.number);
  Fail(CompletionError(where_, wc.qp_num, "a SEND", wc.status, wc.vendor_err));
}

void ControlPair::Fail(absl::Status why) {
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  client_->OnPairWork();
}

std::vector<ControlPart> ControlPair::TakeUndelivered() {
  std::vector<ControlPart> parts;
  uint32_t number = credit_.taken();
  for (const Unacknowledged& one : unacknowledged_) {
    const char* const bytes = reinterpret_cast<const char*>(one.buffer.at) + kPartHeadBytes;
    parts.push_back({.number = number++, .more = one.more, .bytes = std::string(bytes, one.bytes)});
  }
  for (; !backlog_.empty(); backlog_.pop_front()) {
    const std::string& message = backlog_.front();
    do {
      std::string part = message.substr(backlog_at_, kMaxPartBytes);
      backlog_at_ += part.size();
      parts.push_back({.number = credit_.OnSend(),
                       .more = backlog_at_ < message.size(),
                       .bytes = std::move(part)});
    } while (backlog_at_ < message.size());
    backlog_at_ = 0;
  }
  return parts;
}

bool ControlPair::Destroy(DestroyQueue::Client* client) {
  if (state_ != State::kOpen) return state_ == State::kOver;
  state_ = State::kUndestroyed;
  stalls_at_.reset();
  uint32_t space = 0;
  if (slot_) {
    space = kDepths.sends + static_cast<uint32_t>(receives_.size());
    backend_->FreeSlot(*slot_, next_);
  }
  if (!backend_->destroyer().Destroy(std::move(pair_), client, 0, space)) return false;
  OnDestroyed();
  return true;
}

void ControlPair::OnDestroyed() {
  state_ = State::kOver;
  for (const Receive& receive : receives_) buffers().Give(receive.buffer);
  for (const Receive& receive : arrived_) buffers().Give(receive.buffer);
  for (const Unacknowledged& one : unacknowledged_) buffers().Give(one.buffer);
  if (credit_buffer_) buffers().Give(*credit_buffer_);
  receives_.clear();
  arrived_.clear();
  unacknowledged_.clear();
  credit_buffer_.reset();
}

}  // namespace kvxfer::verbs
