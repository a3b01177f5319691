#include "src/agent/session/posted_book.h"

namespace kvxfer {

absl::Status PostedBook::Enter(internal::TransferRecord& record, const absl::Status& refused) {
  count_->fetch_add(1, std::memory_order_relaxed);
  absl::Status status = refused;
  if (status.ok() && record.kind != TransferKind::kNotify) {
    status = runtime_->memory.Use(*record.local, record.blocks.local_regions());
  }
  if (status.ok()) {
    deadlines_.emplace(record.deadline, record.id);
  } else {
    record.local = nullptr;  // holds no regions
  }
  return status;
}

void PostedBook::EnterChild(const internal::TransferRecord& record) {
  count_->fetch_add(1, std::memory_order_relaxed);
  runtime_->memory.UseAgain(*record.local, record.blocks.local_regions());
  deadlines_.emplace(record.deadline, record.id);
}

void PostedBook::Leave(const internal::TransferRecord& record) {
  deadlines_.erase(Deadline(record.deadline, record.id));
  count_->fetch_sub(1, std::memory_order_relaxed);
}

void PostedBook::LetMemoryGo(internal::TransferRecord& record) {
  record.blocks.ReleaseIds(runtime_->ids);
  if (record.local != nullptr) {
    runtime_->memory.Unuse(*record.local, record.blocks.local_regions());
  }
}

std::optional<uint64_t> PostedBook::TakeDue(Time now) {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  const uint64_t id = deadlines_.begin()->second;
  deadlines_.erase(deadlines_.begin());
  return id;
}

}  // namespace kvxfer
