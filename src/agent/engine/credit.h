// The credit that initiators get back as the application takes their notifications.
//
// Thread-safety: all methods from any thread, but for what is the driver's.

#ifndef KVXFER_AGENT_ENGINE_CREDIT_H_
#define KVXFER_AGENT_ENGINE_CREDIT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kvxfer/notification.h"
#include "src/core/base/ready_list.h"

namespace kvxfer {

// The credit that one inbound session's notifications have returned so far. The session and the
// queued notifications share it, because either may outlive the other.
struct CreditAccount {
  std::atomic<uint64_t> notifications{0};  // taken by the application
  std::atomic<uint64_t> bytes{0};
  bool returned = false;               // it is in ReturnedCredit, which guards this
  ReadyList::Member* ready = nullptr;  // of the session; the driver's. Null: it is over
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

// The accounts to which credit was returned since the driver looked last.
class ReturnedCredit {
 public:
  void Add(const std::shared_ptr<CreditAccount>& account) {
    std::lock_guard lock(mu_);
    if (!std::exchange(account->returned, true)) accounts_.push_back(account);
  }
  std::vector<std::shared_ptr<CreditAccount>> Take() {
    std::lock_guard lock(mu_);
    // Before their credit is read: what is returned later adds its account again.
    for (const auto& account : accounts_) account->returned = false;
    return std::exchange(accounts_, {});
  }

 private:
  std::mutex mu_;
  std::vector<std::shared_ptr<CreditAccount>> accounts_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_CREDIT_H_
