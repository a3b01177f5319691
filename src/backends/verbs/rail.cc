// VerbsRail: building requests, posting them, completions, and its end.

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

VerbsRail::Posted VerbsRail::Post(const Op& op, uint32_t most) {
  // Two requests are kept for the rail's own use.
  if (queue_.space() < most + 2 || device().space() < most || bytes_ > kMaxBytesInFlight) {
    return Posted::kNoSpace;
  }
  Flight flight{.op = op.id,
                .transfer = op.transfer,
                .bytes = op.blocks.bytes,
                .read = op.kind == OpKind::kRead};
  if (op.blocks.bytes == 0) {
    flight.requests = BuildNothing();
  } else if (endpoint_->plain()) {
    flight.requests = Build(op);
  } else {
    bool local_gpu = false;
    flight.requests = BuildParts(op, local_gpu);
    flight.into_gpu = flight.read && local_gpu;
  }
  if (flight.requests == 0) return Posted::kNoKey;
  ibv_send_wr* const requests = endpoint_->backend().requests().requests();
  flight.remote = requests[0].wr.rdma.remote_addr;
  if (op.has_immediate) {
    ibv_send_wr& last = requests[flight.requests - 1];
    last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    last.imm_data = htobe32(op.immediate);
  }
  bytes_ += flight.bytes;
  dirty_ = dirty_ || !flight.read;
  device().TakeSpace(flight.requests);
  Submit(flight);
  return Posted::kYes;
}

uint64_t VerbsRail::NextId() const {
  return WorkId{.slot = *slot_, .number = queue_.next_number()}.Encode();
}

RequestBuilder VerbsRail::MakeBuilder(OpKind kind) {
  const bool read = kind == OpKind::kRead;
  return RequestBuilder(endpoint_->backend().requests(),
                        read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, NextId(),
                        read ? 0 : qp_->max_inline(), qp_->max_sge(read));
}

// The hot path: everything that is done for each block is in this loop. Flattened, because a call
// within the walk would keep its state in memory.
[[gnu::flatten]] uint32_t VerbsRail::Build(const Op& op) {
  RequestBuilder builder = MakeBuilder(op.kind);
  const size_t local_device = device().ordinal();
  const size_t remote_device = remote_device_;
  const Registration* registration = nullptr;
  const RemoteKey* key = nullptr;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    if (run.registration != registration || run.key != key) {
      registration = run.registration;
      key = run.key;
      if (registration == nullptr || key == nullptr) return 0;
      lkey = static_cast<const VerbsRegistration*>(registration)->lkey(local_device);
      rkey = static_cast<const VerbsRemoteKey*>(key)->rkey(remote_device);
    }
    builder.Add(run.local, lkey, run.remote, rkey, run.bytes, true);
  }
  return builder.requests();
}

// Nothing to move: an empty write needs no memory but has its place in the order.
uint32_t VerbsRail::BuildNothing() {
  ibv_send_wr& wr = endpoint_->backend().requests().requests()[0];
  wr.wr_id = NextId();
  wr.sg_list = nullptr;
  wr.num_sge = 0;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = 0;
  wr.wr.rdma.remote_addr = 0;
  wr.wr.rdma.rkey = 0;
  return 1;
}

void VerbsRail::BuildWord(size_t index, bool read) {
  const RequestPool& pool = endpoint_->backend().requests();
  const Scratch::Slot& mine = endpoint_->scratch();
  ibv_sge& element = pool.elements()[index];
  element.addr = mine.address() + index_ * 8 + (read ? Scratch::kReadOffset : 0);
  element.length = 8;
  element.lkey = mine.registration->lkey(device().ordinal());
  ibv_send_wr& wr = pool.requests()[index];
  wr.wr_id = NextId();
  wr.sg_list = &element;
  wr.num_sge = 1;
  wr.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  wr.send_flags = 0;
  wr.wr.rdma.remote_addr = scratch_ + index_ * 8;
  wr.wr.rdma.rkey = scratch_key_;
}

void VerbsRail::SubmitOwn(Purpose purpose, uint32_t requests) {
  Submit({.requests = requests, .purpose = purpose, .read = true});
}

void VerbsRail::Flush() {
  dirty_ = false;
  BuildWord(0, true);
  SubmitOwn(Purpose::kFlush, 1);
}

void VerbsRail::Submit(const Flight& flight) {
  ibv_send_wr* const first = endpoint_->backend().requests().requests();
  ibv_send_wr& last = first[flight.requests - 1];
  last.wr_id |= 1;
  last.send_flags |= IBV_SEND_SIGNALED;
  if (queue_.empty()) WatchStall(Now());
  const uint64_t number = queue_.Push(flight);
  ibv_send_wr* const next = std::exchange(last.next, nullptr);
  ibv_send_wr* bad = nullptr;
  const int error = device().ibv().PostSend(qp_->get(), first, &bad);
  last.next = next;
  if (error == 0) return;
  // Requests before `bad` were posted and are flushed. The rest was never posted and ends with the
  // queue pair.
  failed_ = number;
  Fail(absl::UnavailableError(absl::StrCat(Where(), ": ", ErrnoText("ibv_post_send", error))),
       true);
  if (!life_.draining()) return;
  drains_with_ = number - 1;
  if (!ordered_) ++flushed_;  // the request that was never posted
  if (queue_.front().number == number) FinishDrain();
}

void VerbsRail::OnDone(const WorkId& id, const ibv_wc& wc) {
  if (!queue_.Has(id.number)) return;  // of an earlier life
  ++progress_;
  if (wc.status == IBV_WC_SUCCESS) {
    Complete(id.number);
  } else {
    // The queue pair worked until now, so all earlier requests have completed.
    const bool first = (!life_.draining() || lingers_) && !undestroyed_;
    if (first && ordered_) CompleteThrough(id.number - 1);
    absl::Status status;
    if ((!life_.draining() && !undestroyed_) || wc.status != IBV_WC_WR_FLUSH_ERR) {
      failed_ = id.number;
      status = OwnError(id.number, wc);
    }
    if (life_.probing()) return ProbeDone(status);
    if (!life_.draining()) {
      Fail(status, true);
      if (!life_.draining()) return;
    } else {
      // The peer or the port reported the failure first; this error says more.
      if (!status.ok()) life_.set_why(std::move(status));
      if (std::exchange(lingers_, false)) life_.set_deadline(Now() + kDrainTime);
    }
    ++flushed_;
  }
  // The remaining ops end together with the rail, so that each of them reports the rail's cause.
  if (life_.draining() && Drained(id)) FinishDrain();
}

// Whether everything has ended, now that `id` has.
bool VerbsRail::Drained(const WorkId& id) const {
  if (queue_.empty()) return true;
  return ordered_ ? id.last && id.number >= drains_with_ : flushed_ >= queue_.open();
}

// The error of the op `number`. An op that would fail over any path gets another code than a
// failure of the path, so that the agent does not repeat it.
absl::Status VerbsRail::OwnError(uint64_t number, const ibv_wc& wc) {
  const Flight& flight = queue_.At(number);
  const char* operation = flight.purpose != Purpose::kOp ? "a probe"
                          : flight.read                  ? "an RDMA read"
                                                         : "an RDMA write";
  absl::Status status = CompletionError(Where(), number_, operation, wc.status, wc.vendor_err);
  if (flight.purpose != Purpose::kOp || MayBeThePath(wc.status)) return status;
  if (!endpoint_->FailedBefore(flight, wc.status) || !absl::IsUnavailable(status)) return status;
  return absl::InternalError(
      absl::StrCat(status.message(), "; it ended so over another queue pair before"));
}

bool VerbsRail::MayBeThePath(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_FATAL_ERR:
      return true;
    case IBV_WC_LOC_QP_OP_ERR:
      // LOC_QP_OP_ERR also comes from a link that went down, so look at the port.
      return !endpoint_->RefreshPort(pair().local).ok() || !port().active;
    default:
      return false;
  }
}

void VerbsRail::Complete(uint64_t number) {
  if (ordered_) return CompleteThrough(number);
  const Flight flight = queue_.Take(number);
  if (flight.purpose == Purpose::kOp) device().GiveSpace(flight.requests);
  EndFlight(flight, absl::OkStatus());
}

void VerbsRail::CompleteThrough(uint64_t number) {
  while (!queue_.empty() && queue_.front().number <= number) {
    const Flight flight = queue_.Pop();
    if (flight.purpose == Purpose::kOp) device().GiveSpace(flight.requests);
    EndFlight(flight, absl::OkStatus());
  }
}

void VerbsRail::EndFlight(const Flight& flight, absl::Status status) {
  bytes_ -= flight.bytes;
  switch (flight.purpose) {
    case Purpose::kProbeWrite:
      if (status.ok() && life_.probing()) PostProbeRead();
      return;
    case Purpose::kProbe:
      if (status.ok()) ProbeDone(status);
      return;
    case Purpose::kFlush:
      return endpoint_->FlushDone();
    case Purpose::kOp:
      return endpoint_->OpDone(index_, flight, std::move(status));
  }
}

void VerbsRail::WatchStall(Time now) {
  if (!up() || life_.deadline()) return;
  progress_seen_ = progress_;
  life_.set_deadline(now + endpoint_->backend().options().stall_timeout);
  endpoint_->Reschedule();
}

// Before kUp a failure fails the attempt; in kDraining it ends the waiting for the peer's last
// answers.
void VerbsRail::Fail(absl::Status why, bool tell) {
  // The pair is not to blame if the local port is down.
  if (life_.attempting()) return AttemptFailed(std::move(why), port().active);
  if (life_.draining() && lingers_) return OnDrainDeadline(Now());
  if (!up()) return;
  StartDraining(std::move(why), tell);
  qp_->SetError();
  if (queue_.empty()) FinishDrain();
}

void VerbsRail::TellLost(const absl::Status& why) {
  endpoint_->Tell(net::LostRail(index_, life_.number(), ToStd(why.message())));
}

// From now on nothing is posted. What was posted ends before the deadline, or with the queue pair.
void VerbsRail::StartDraining(absl::Status why, bool tell) {
  life_.Drain(std::move(why), Now() + kDrainTime);
  if (tell) TellLost(life_.why());
  drains_with_ = queue_.empty() ? 0 : queue_.back().number;
  flushed_ = 0;
  endpoint_->Reschedule();
}

void VerbsRail::OnDrainDeadline(Time now) {
  if (!std::exchange(lingers_, false)) return FinishDrain();
  qp_->SetError();
  life_.set_deadline(now + kDrainTime);
  endpoint_->Reschedule();
}

void VerbsRail::FinishDrain() {
  lingers_ = false;
  life_.set_deadline(std::nullopt);
  if (!Destroy(life_.why(), IfRefused::kWait)) return;
  life_.End(life_.why());
  endpoint_->RailDown(index_, life_.why());
}

bool VerbsRail::Destroy(const absl::Status& why, IfRefused if_refused) {
  if (undestroyed_) return false;
  if (job_ == 0 && qp_ == nullptr) return true;  // also if the backend is gone
  endpoint_->backend().setups().Cancel(std::exchange(job_, 0));
  DestroyQueue::Client* const client = if_refused == IfRefused::kWait ? endpoint_ : nullptr;
  undestroyed_ = !endpoint_->backend().destroyer().Destroy(std::move(qp_), client, index_,
                                                           std::exchange(reserved_, 0)) &&
                 client != nullptr;
  if (undestroyed_) return false;
  Release(why);
  return true;
}

void VerbsRail::Release(const absl::Status& why) {
  if (!slot_) return;
  endpoint_->backend().FreeSlot(*slot_, queue_.next_number());
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
void VerbsRail::OnLost(const RailLost& lost) {
  if (lost.life != life_.number()) return;
  absl::Status why =
      absl::UnavailableError(absl::StrCat(Where(), ": the peer's end of it failed: ", lost.why));
  if (!up() || queue_.empty()) return Fail(std::move(why), true);
  StartDraining(std::move(why), true);
  lingers_ = true;
  life_.set_deadline(Now() + kLastWord);
}

void VerbsRail::End(const absl::Status& why) {
  const bool was_draining = life_.draining();
  const bool carried = was_draining || up();
  const bool destroyed = Destroy(why, carried ? IfRefused::kWait : IfRefused::kLeave);
  life_.End(destroyed || was_draining ? life_.why() : why);
}

void VerbsRail::OnDestroyed() {
  undestroyed_ = false;
  Release(life_.why());
  if (life_.draining()) FinishDrain();
}

}  // namespace kvxfer::verbs
