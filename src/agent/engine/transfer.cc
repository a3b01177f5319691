#include "kvxfer/transfer.h"

#include <utility>

#include "src/agent/engine/options_env.h"
#include "src/agent/engine/transfer_service.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

absl::Status NoTransfer() { return absl::FailedPreconditionError("this handle holds no transfer"); }

// Waits on the agent of `record` until done(); OK says that it is.
absl::Status WaitOn(const TransferPtr& record, absl::FunctionRef<bool()> done, Duration timeout) {
  if (record == nullptr) return NoTransfer();
  // Refused even if there is nothing to wait for; otherwise the mistake would show only under load.
  if (auto status = CallGate::RefuseInCallback("waiting"); !status.ok()) return status;
  if (done()) return absl::OkStatus();
  const auto service = record->service.lock();
  if (service == nullptr) return absl::FailedPreconditionError("the agent is gone");
  auto waited = service->gate().WaitFor(record.get(), done, After(timeout));
  if (!waited.ok()) return waited.status();
  // It may have ended between the time-out and now.
  if (*waited || done()) return absl::OkStatus();
  return TimedOutError(absl::StrCat("transfer ", record->id, " to ", record->peer,
                                    record->ended() ? " is still quarantined" : " is still active",
                                    " after the time-out; it goes on"));
}

}  // namespace

absl::Status Transfer::Wait(Duration timeout) const {
  auto waited = WaitOn(
      record_, [this] { return record_->ended(); }, timeout);
  return waited.ok() ? record_->end().status : waited;
}

absl::Status Transfer::WaitQuiet(Duration timeout) const {
  return WaitOn(
      record_, [this] { return record_->ended() && !record_->quarantined(); }, timeout);
}

TransferState Transfer::Poll() const {
  return record_ == nullptr ? TransferState::kFailed : record_->state();
}

absl::Status Transfer::status() const {
  return record_ == nullptr ? NoTransfer() : record_->end().status;
}

void Transfer::Cancel() const {
  if (record_ == nullptr || record_->ended()) return;
  const auto service = record_->service.lock();
  if (service != nullptr && !service->gate().InForkedChild()) service->Cancel(record_);
}

void Transfer::OnEnd(std::function<void(const Transfer&)> callback) const {
  if (record_ == nullptr || !callback) return;
  const auto service = record_->service.lock();
  if (service != nullptr && service->gate().InForkedChild()) return;
  if (!record_->SetCallback(callback)) return;
  // The callback runs on the agent's dispatcher, so without the agent it is dropped.
  if (service != nullptr) {
    service->Run([callback = std::move(callback), self = *this] { callback(self); });
  }
}

absl::Status Transfer::Watch(uint64_t user_word) const {
  if (record_ == nullptr) return NoTransfer();
  const auto service = record_->service.lock();
  if (service == nullptr) return absl::FailedPreconditionError("the agent is gone");
  return service->Watch(record_, user_word);
}

absl::Status Transfer::StreamWait(const CudaStream& stream) const {
  if (record_ == nullptr) return NoTransfer();
  if (record_->ended()) return absl::OkStatus();
  const auto service = record_->service.lock();
  if (service != nullptr) {
    if (auto status = service->gate().CheckNotForked(); !status.ok()) return status;
  } else if (!record_->ended()) {
    return absl::FailedPreconditionError("the agent is gone");
  }
  if (absl::Status queues = CheckCudaQueues(); !queues.ok()) return queues;
  return record_->StreamWait(stream);
}

bool Transfer::quarantined() const { return record_ != nullptr && record_->quarantined(); }

Delivery Transfer::delivery() const {
  if (record_ == nullptr) return Delivery::kNone;
  if (record_->ended()) return record_->end().delivery;
  return record_->options.notification.has_value() ? Delivery::kPending : Delivery::kNone;
}

TransferStats Transfer::stats() const {
  return record_ == nullptr ? TransferStats{} : record_->end().stats;
}

uint64_t Transfer::id() const { return record_ == nullptr ? 0 : record_->id; }

std::string Transfer::peer() const { return record_ == nullptr ? std::string() : record_->peer; }

const char* ToString(TransferState state) {
  switch (state) {
    case TransferState::kActive:
      return "active";
    case TransferState::kDone:
      return "done";
    case TransferState::kFailed:
      return "failed";
    case TransferState::kCancelled:
      return "cancelled";
    case TransferState::kDeadlineExceeded:
      return "deadline exceeded";
  }
  return "?";
}

const char* ToString(Delivery delivery) {
  switch (delivery) {
    case Delivery::kNone:
      return "none";
    case Delivery::kPending:
      return "pending";
    case Delivery::kDelivered:
      return "delivered";
    case Delivery::kNotDelivered:
      return "not delivered";
    case Delivery::kUnknown:
      return "unknown";
  }
  return "?";
}

}  // namespace kvxfer
