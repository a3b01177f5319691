// The credit that initiators get back as the application takes their notifications.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_CREDIT_H_
#define KVXFER_AGENT_ENGINE_CREDIT_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "kvxfer/notification.h"

namespace kvxfer {

// The credit that one inbound session's notifications have returned so far. The session and the
// queued notifications share it, because either may outlive the other.
struct CreditAccount {
  std::atomic<uint64_t> notifications{0};  // taken by the application
  std::atomic<uint64_t> bytes{0};
};

// The credit that is returned when the application takes one notification.
struct Credit {
  std::shared_ptr<CreditAccount> account;
  uint64_t bytes = 0;

  void GiveBack() const {
    // The release pairs with the acquire of the session's read of `notifications`: a session that
    // counts this notification also counts its bytes.
    account->bytes.fetch_add(bytes, std::memory_order_relaxed);
    account->notifications.fetch_add(1, std::memory_order_release);
  }
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_CREDIT_H_
