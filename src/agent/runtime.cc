#include "src/agent/runtime.h"

#include <utility>

namespace kvxfer {

void Runtime::Publish(const TransferPtr& record, internal::TransferRecord::End end) {
  if (auto callback = record->Publish(std::move(end))) {
    dispatcher.Run([callback = std::move(callback), record] {
      callback(internal::TransferRecord::Handle(record));
    });
  }
  loop.Wake(record.get());
}

void Runtime::ClearQuarantine(const TransferPtr& record) {
  record->ClearQuarantine();
  loop.Wake(record.get());
}

}  // namespace kvxfer
