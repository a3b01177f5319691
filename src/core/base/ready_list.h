// The list of those that have something to do. A pass visits its marked members and nobody else, so
// its cost does not depend on how many members there are.
//
// Each pass begins with any one of those that are marked: they may compete for something, and
// whoever marks them may do so in a fixed order.
//
// Lifetime: the list outlives its members. Thread-safety: none; one driver. Pure.

#ifndef KVXFER_CORE_BASE_READY_LIST_H_
#define KVXFER_CORE_BASE_READY_LIST_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "src/core/base/clock.h"

namespace kvxfer {

class ReadyList {
 public:
  class Member {
   public:
    class User {
     public:
      virtual ~User() = default;
      // Does what there is to do, all of it. A mark that this leads to is no reason to visit again;
      // what cannot be done yet and is announced by nothing calls Again.
      virtual void Pump(Time now) = 0;
    };

    // Both outlive the member. It is not marked.
    Member(ReadyList* list, User* user) : list_(list), user_(user) {}
    ~Member() { LeavePlace(); }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // There is something to do: for this pass, or, where none is on, for the next.
    void Mark() {
      if (state_ == State::kAgain) LeavePlace();
      if (state_ == State::kIdle) Enter(list_->marked_, State::kMarked);
    }
    // For the next pass, if nothing marks it before.
    void Again() {
      if (state_ == State::kIdle || state_ == State::kVisited) Enter(list_->again_, State::kAgain);
    }

   private:
    friend class ReadyList;
    enum class State : uint8_t { kIdle, kVisited, kMarked, kAgain };

    void Enter(std::vector<Member*>& places, State state) {
      state_ = state;
      place_ = places.size();
      places.push_back(this);
    }
    void LeavePlace();

    ReadyList* const list_;
    User* const user_;
    State state_ = State::kIdle;
    size_t place_ = 0;  // in marked_ or again_
  };

  ReadyList() = default;
  ReadyList(const ReadyList&) = delete;
  ReadyList& operator=(const ReadyList&) = delete;

  // Some are marked, so a pass is due.
  bool any() const { return !marked_.empty(); }
  // What waited for the next pass is marked.
  void BeginPass() {
    if (!again_.empty()) MarkAgain();
    if (marked_.size() > 1) Rotate();
  }
  // Visits all that are marked, and those that are marked meanwhile. A member may not be destroyed
  // while it is visited.
  void Visit(Time now);

 private:
  void MarkAgain();
  void Rotate();

  // Null: it has gone.
  std::vector<Member*> marked_;
  std::vector<Member*> again_;
  std::minstd_rand random_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_READY_LIST_H_
