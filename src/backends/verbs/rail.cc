// Rail: building requests, posting them, completions, and its end.

#include "src/backends/verbs/rail.h"

#include <endian.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

// The most bytes in flight on one rail: far more than any path holds, few enough that a fence is
// quick.
constexpr uint64_t kMaxBytesInFlight = 16 * 1024 * 1024;
// How long flushed completions are awaited. They come at once, if they come at all.
constexpr Duration kDrainTime = std::chrono::seconds(1);
// How long the peer's device may still answer after the peer has reported that its end failed.
constexpr Duration kLastWord = std::chrono::milliseconds(50);

}  // namespace

bool Rail::Post(const Op& op) {
  const bool plain = link_->plain();
  const uint32_t most =
      plain ? static_cast<uint32_t>(std::max<size_t>(op.runs.size(), 1)) : PiecesOf(op);
  RequestPool& pool = link_->backend().requests();
  // Two requests are kept for the rail's own use.
  if (queue_.space() < most + 2 || device().space() < most || bytes_ > kMaxBytesInFlight) {
    return false;
  }
  if (!pool.HasSpace(most)) {
    link_->RingAll();
    if (!up()) return false;
  }
  Flight flight{.op = op.id,
                .transfer = op.transfer,
                .remote = op.runs.empty() ? 0 : op.runs.front().remote,
                .read = op.kind == OpKind::kRead};
  for (const Run& run : op.runs) flight.bytes += run.bytes;
  ibv_send_wr* last = nullptr;
  flight.requests = plain ? Build(op, last) : BuildPieces(op, last);
  flight.into_gpu = !plain && flight.read && IntoGpu(op);
  if (op.has_immediate) {
    last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    last->imm_data = htobe32(op.immediate);
  }
  last->send_flags |= IBV_SEND_SIGNALED;
  last->wr_id |= 1;
  if (queue_.empty()) WatchStall(Now());
  bytes_ += flight.bytes;
  dirty_ = dirty_ || !flight.read;
  device().TakeSpace(flight.requests);
  queue_.Push(flight);
  return true;
}

// Appends a request to the chain that is being built, with the id of the op that is pushed next.
ibv_send_wr& Rail::Chain() {
  ibv_send_wr& wr = link_->backend().requests().NextRequest();
  wr.wr_id = WorkId{.slot = *slot_, .number = queue_.next_number()}.Encode();
  wr.next = nullptr;
  wr.send_flags = 0;
  if (first_ == nullptr) {
    first_ = &wr;
  } else {
    last_->next = &wr;
  }
  last_ = &wr;
  return wr;
}

// Runs that are adjacent at the peer share a request, gathered. Returns the number of requests.
uint32_t Rail::Build(const Op& op, ibv_send_wr*& last) {
  RequestPool& pool = link_->backend().requests();
  const ibv_wr_opcode opcode = op.kind == OpKind::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  const size_t local_device = device().ordinal();
  const uint32_t max_sge = qp_->max_sge(op.kind == OpKind::kRead);
  uint32_t requests = 0;
  uint64_t end = 0;  // of the current request, at the peer
  uint64_t total = 0;
  const RemoteKey* key = nullptr;
  const auto finish = [&] {
    if (op.kind == OpKind::kWrite && total <= qp_->max_inline()) {
      last->send_flags |= IBV_SEND_INLINE;
    }
  };
  for (const Run& run : op.runs) {
    if (run.bytes == 0) continue;
    if (requests > 0 && run.remote == end && run.key == key &&
        static_cast<uint32_t>(last->num_sge) < max_sge) {
      ++last->num_sge;
    } else {
      if (requests > 0) finish();
      last = &Chain();
      last->opcode = opcode;
      last->sg_list = nullptr;
      last->num_sge = 1;
      last->wr.rdma.remote_addr = run.remote;
      last->wr.rdma.rkey = static_cast<const VerbsRemoteKey*>(run.key)->rkey(remote_device_);
      key = run.key;
      total = 0;
      ++requests;
    }
    ibv_sge& element = pool.NextElement();
    if (last->sg_list == nullptr) last->sg_list = &element;
    element.addr = run.local;
    element.length = static_cast<uint32_t>(run.bytes);
    element.lkey = static_cast<const VerbsRegistration*>(run.registration)->lkey(local_device);
    end = run.remote + run.bytes;
    total += run.bytes;
  }
  if (requests > 0) {
    finish();
    return requests;
  }
  return BuildNothing(last);
}

// Nothing to move: an empty write needs no memory but has its place in the order.
uint32_t Rail::BuildNothing(ibv_send_wr*& last) {
  last = &Chain();
  last->opcode = IBV_WR_RDMA_WRITE;
  last->sg_list = nullptr;
  last->num_sge = 0;
  last->wr.rdma.remote_addr = 0;
  last->wr.rdma.rkey = 0;
  return 1;
}

void Rail::FillWord(ibv_send_wr& wr, bool read) {
  const Scratch::Slot& mine = link_->scratch();
  ibv_sge& element = link_->backend().requests().NextElement();
  element.addr = mine.address() + index_ * 8 + (read ? Scratch::kReadOffset : 0);
  element.length = 8;
  element.lkey = mine.registration->lkey(device().ordinal());
  wr.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  wr.sg_list = &element;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = scratch_ + index_ * 8;
  wr.wr.rdma.rkey = scratch_key_;
}

// Posts the chain, whose last requests are the rail's own. Their completion queue entries were
// reserved.
void Rail::Internal(Purpose purpose, ibv_send_wr& last, uint32_t requests) {
  last.send_flags |= IBV_SEND_SIGNALED;
  last.wr_id |= 1;
  if (queue_.empty()) WatchStall(Now());
  queue_.Push({.requests = requests, .purpose = purpose, .read = true});
  Ring();
  // No Post is in progress, so nothing else is in the pool.
  link_->backend().requests().Clear();
}

void Rail::Flush() {
  dirty_ = false;
  ibv_send_wr& wr = Chain();
  FillWord(wr, true);
  Internal(Purpose::kFlush, wr, 1);
}

void Rail::Ring() {
  if (first_ == nullptr) return;
  ibv_send_wr* bad = nullptr;
  ibv_send_wr* const first = std::exchange(first_, nullptr);
  last_ = nullptr;
  const int error = device().ibv().PostSend(qp_->get(), first, &bad);
  if (error == 0) return;
  // Requests before `bad` were posted and are flushed. The rest was never posted and ends with the
  // queue pair.
  if (bad != nullptr) failed_ = WorkId::Decode(bad->wr_id).number;
  Fail(absl::UnavailableError(absl::StrCat(Where(), ": ", ErrnoText("ibv_post_send", error))),
       true);
  if (state_ != State::kDraining) return;
  drains_with_ = failed_ - 1;
  // The requests that were never posted.
  if (!ordered_) flushed_ += queue_.back().number - drains_with_;
  if (queue_.front().number > drains_with_) FinishDrain();
}

void Rail::OnDone(const WorkId& id, const ibv_wc& wc) {
  if (!queue_.Has(id.number)) return;  // of an earlier life
  ++progress_;
  if (wc.status == IBV_WC_SUCCESS) {
    Complete(id.number);
  } else {
    // The queue pair worked until now, so all earlier requests have completed.
    const bool first = (state_ != State::kDraining || lingers_) && !undestroyed_;
    if (first && ordered_) CompleteThrough(id.number - 1);
    absl::Status status;
    if ((state_ != State::kDraining && !undestroyed_) || wc.status != IBV_WC_WR_FLUSH_ERR) {
      failed_ = id.number;
      status = OwnError(id.number, wc);
    }
    if (state_ == State::kProbing) return ProbeDone(status);
    if (state_ != State::kDraining) {
      Fail(status, true);
      if (state_ != State::kDraining) return;
    } else {
      // The peer or the port reported the failure first; this error says more.
      if (!status.ok()) why_ = std::move(status);
      if (std::exchange(lingers_, false)) deadline_ = Now() + kDrainTime;
    }
    ++flushed_;
  }
  // The remaining ops end together with the rail, so that each of them reports the rail's cause.
  if (state_ == State::kDraining && Drained(id)) FinishDrain();
}

// Whether everything has ended, now that `id` has.
bool Rail::Drained(const WorkId& id) const {
  if (queue_.empty()) return true;
  return ordered_ ? id.last && id.number >= drains_with_ : flushed_ >= queue_.open();
}

// The error of the op `number`. An op that would fail over any path gets another code than a
// failure of the path, so that the agent does not repeat it.
absl::Status Rail::OwnError(uint64_t number, const ibv_wc& wc) {
  const Flight& flight = queue_.At(number);
  const char* operation = flight.purpose != Purpose::kOp ? "a probe"
                          : flight.read                  ? "an RDMA read"
                                                         : "an RDMA write";
  absl::Status status = CompletionError(Where(), number_, operation, wc.status, wc.vendor_err);
  if (flight.purpose != Purpose::kOp || MayBeThePath(wc.status)) return status;
  if (!link_->FailedBefore(flight, wc.status) || !absl::IsUnavailable(status)) return status;
  return absl::InternalError(
      absl::StrCat(status.message(), "; it ended so over another queue pair before"));
}

bool Rail::MayBeThePath(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_FATAL_ERR:
      return true;
    case IBV_WC_LOC_QP_OP_ERR:
      // LOC_QP_OP_ERR also comes from a link that went down, so look at the port.
      return !link_->RefreshPort(pair_.local).ok() || !port().active;
    default:
      return false;
  }
}

void Rail::Complete(uint64_t number) {
  if (ordered_) return CompleteThrough(number);
  const Flight flight = queue_.Take(number);
  if (flight.purpose == Purpose::kOp) device().GiveSpace(flight.requests);
  EndFlight(flight, absl::OkStatus());
}

void Rail::CompleteThrough(uint64_t number) {
  while (!queue_.empty() && queue_.front().number <= number) {
    const Flight flight = queue_.Pop();
    if (flight.purpose == Purpose::kOp) device().GiveSpace(flight.requests);
    EndFlight(flight, absl::OkStatus());
  }
}

void Rail::EndFlight(const Flight& flight, absl::Status status) {
  bytes_ -= flight.bytes;
  switch (flight.purpose) {
    case Purpose::kProbeWrite:
      if (status.ok() && state_ == State::kProbing) PostProbeRead();
      return;
    case Purpose::kProbe:
      if (status.ok()) ProbeDone(status);
      return;
    case Purpose::kFlush:
      return link_->FlushDone();
    case Purpose::kOp:
      return link_->OpDone(index_, flight, std::move(status));
  }
}

void Rail::WatchStall(Time now) {
  if (state_ != State::kUp || deadline_) return;
  progress_seen_ = progress_;
  deadline_ = now + link_->backend().options().stall_timeout;
  link_->backend().TimersChanged();
}

// Before kUp a failure fails the attempt; in kDraining it ends the waiting for the peer's last
// answers.
void Rail::Fail(absl::Status why, bool tell) {
  // The pair is not to blame if the local port is down.
  if (state_ > State::kWaiting && state_ < State::kUp) {
    return AttemptFailed(std::move(why), port().active);
  }
  if (state_ == State::kDraining && lingers_) return OnDrainDeadline(Now());
  if (state_ != State::kUp) return;
  StartDraining(std::move(why), tell);
  qp_->SetError();
  if (queue_.empty()) FinishDrain();
}

// From now on nothing is posted. What was posted ends before the deadline, or with the queue pair.
void Rail::StartDraining(absl::Status why, bool tell) {
  state_ = State::kDraining;
  why_ = std::move(why);
  if (tell) link_->TellLost(index_, life_, why_);
  // Post may be in progress: requests that were built for this rail are dropped, and their op ends
  // with the drain.
  first_ = last_ = nullptr;
  drains_with_ = queue_.empty() ? 0 : queue_.back().number;
  flushed_ = 0;
  deadline_ = Now() + kDrainTime;
  link_->backend().TimersChanged();
}

void Rail::OnDrainDeadline(Time now) {
  if (!std::exchange(lingers_, false)) return FinishDrain();
  qp_->SetError();
  deadline_ = now + kDrainTime;
  link_->backend().TimersChanged();
}

void Rail::FinishDrain() {
  lingers_ = false;
  deadline_.reset();
  if (!Destroy(why_, IfRefused::kWait)) return;
  state_ = State::kDown;
  link_->RailDown(index_, why_);
}

bool Rail::Destroy(const absl::Status& why, IfRefused if_refused) {
  if (undestroyed_) return false;
  if (job_ == 0 && qp_ == nullptr) return true;  // also if the backend is gone
  first_ = last_ = nullptr;
  link_->backend().setups().Cancel(std::exchange(job_, 0));
  DestroyQueue::Client* const client = if_refused == IfRefused::kWait ? link_ : nullptr;
  undestroyed_ = !link_->backend().destroyer().Destroy(std::move(qp_), client, index_,
                                                       std::exchange(reserved_, 0)) &&
                 client != nullptr;
  if (undestroyed_) return false;
  Release(why);
  return true;
}

void Rail::Release(const absl::Status& why) {
  if (!slot_) return;
  link_->backend().FreeSlot(*slot_, queue_.next_number());
  slot_.reset();
  while (!queue_.empty()) {
    const Flight flight = queue_.Pop();
    if (flight.over) continue;
    if (flight.purpose == Purpose::kOp) device().GiveSpaceWhenPolled(flight.requests);
    // The op that failed gets the cause itself; the others may go over other rails.
    EndFlight(flight, flight.number == failed_ ? why
                                               : absl::UnavailableError(absl::StrCat(
                                                     "given up with its rail: ", why.message())));
  }
  dirty_ = false;
}

// If the peer's device refused a request, this side's device reports that soon, for the one op that
// caused it. Flushing at once would make all ops look alike.
void Rail::OnLost(const RailLost& lost) {
  if (lost.life != life_) return;
  absl::Status why =
      absl::UnavailableError(absl::StrCat(Where(), ": the peer's end of it failed: ", lost.why));
  if (!up() || queue_.empty()) return Fail(std::move(why), true);
  StartDraining(std::move(why), true);
  lingers_ = true;
  deadline_ = Now() + kLastWord;
}

void Rail::End(const absl::Status& why) {
  const bool draining = state_ == State::kDraining;
  const bool carried = draining || up();
  if (!Destroy(why, carried ? IfRefused::kWait : IfRefused::kLeave) && !draining) why_ = why;
  state_ = State::kDown;
  deadline_.reset();
}

void Rail::OnDestroyed() {
  undestroyed_ = false;
  Release(why_);
  if (state_ == State::kDraining) FinishDrain();
}

}  // namespace kvxfer::verbs
