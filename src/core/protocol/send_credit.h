// The initiator's credit for notifications: how many, and bytes of them, it may send in a session.
// All numbers are totals since the session began.
//
// Thread-safety: none. A plain value.

#ifndef KVXFER_CORE_PROTOCOL_SEND_CREDIT_H_
#define KVXFER_CORE_PROTOCOL_SEND_CREDIT_H_

#include <algorithm>
#include <string>

#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class SendCredit {
 public:
  // Whether `notification` may be sent. Null: there is none, so it needs no credit.
  bool Has(const std::string* notification) const {
    if (notification == nullptr) return true;
    return used_.notifications < granted_.notifications &&
           used_.bytes + notification->size() <= granted_.bytes;
  }
  // Frames may overtake each other, so an older one must not take credit away.
  void OnCredit(const CreditFrame& credit) {
    granted_.notifications = std::max(granted_.notifications, credit.notifications);
    granted_.bytes = std::max(granted_.bytes, credit.bytes);
  }
  // Requires Has.
  void Take(const std::string* notification) {
    if (notification == nullptr) return;
    ++used_.notifications;
    used_.bytes += notification->size();
  }
  // The target never had the notification, or dropped it with the transfer.
  void Return(const std::string* notification) {
    if (notification == nullptr) return;
    --used_.notifications;
    used_.bytes -= notification->size();
  }

 private:
  CreditFrame granted_{};
  CreditFrame used_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_CREDIT_H_
