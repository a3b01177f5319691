// What other threads have added and the driver has not taken over yet. The driver looks at it often
// and almost always in vain, so looking costs one load.
//
// Thread-safety: Add from any thread; the rest by the driver only.

#ifndef KVXFER_TRANSPORT_ADDED_LIST_H_
#define KVXFER_TRANSPORT_ADDED_LIST_H_

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace kvxfer::net {

// The entries are borrowed: each stays valid until Take has returned it, or Remove has removed it.
template <typename T>
class AddedList {
 public:
  void Add(T* entry) {
    const std::lock_guard lock(mu_);
    added_.push_back(entry);
    any_.store(true, std::memory_order_release);
  }

  // True: it had not been taken over.
  bool Remove(T* entry) {
    const std::lock_guard lock(mu_);
    return std::erase(added_, entry) > 0;
  }

  bool any() const { return any_.load(std::memory_order_acquire); }

  std::vector<T*> Take() {
    const std::lock_guard lock(mu_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(added_, {});
  }

 private:
  std::mutex mu_;
  std::vector<T*> added_;         // guarded by mu_
  std::atomic<bool> any_{false};  // written with mu_ held
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_ADDED_LIST_H_
