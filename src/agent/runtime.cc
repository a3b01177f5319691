#include "src/agent/runtime.h"

#include <span>
#include <string>
#include <utility>

namespace kvxfer {

void SendKept(ReliableChannel& channel, Endpoint& endpoint) {
  while (const std::string* message = channel.NextToSend()) {
    if (!endpoint.Send(std::as_bytes(std::span(*message)))) return;
    channel.MessageSent();
  }
  if (!channel.ack_pressing()) return;
  const std::string ack = channel.AckMessage();
  // Lost for want of room: the next message acknowledges too.
  endpoint.Send(std::as_bytes(std::span(ack)));
}

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
