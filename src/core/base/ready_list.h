// Who has something to do. A pass visits those that are marked and nobody else, so it does not
// depend on how many there are.
//
// Each pass begins with any one of those that are marked: they may compete for something, and
// whoever marks them may do so in a fixed order.
//
// Lifetime: the list outlives its members. Thread-safety: none; one driver. Pure.

#ifndef KVXFER_CORE_BASE_READY_LIST_H_
#define KVXFER_CORE_BASE_READY_LIST_H_

#include <cstdint>
#include <list>
#include <random>

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
    Member(ReadyList* list, User* user);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // There is something to do: for this pass, or, where none is on, for the next.
    void Mark();
    // For the next pass, if nothing marks it before.
    void Again();

   private:
    friend class ReadyList;
    enum class State : uint8_t { kIdle, kVisited, kMarked, kAgain };

    // Its place moves between the lists.
    void MoveTo(State state);

    ReadyList* const list_;
    User* const user_;
    State state_ = State::kIdle;
    std::list<Member*>::iterator place_;
  };

  ReadyList() = default;
  ReadyList(const ReadyList&) = delete;
  ReadyList& operator=(const ReadyList&) = delete;

  // Some are marked, so a pass is due.
  bool any() const { return !marked_.empty(); }
  // What waited for the next pass is marked.
  void BeginPass();
  // Visits all that are marked, and those that are marked meanwhile. A member may not be destroyed
  // while it is visited.
  void Visit(Time now);

 private:
  std::list<Member*>& ListOf(Member::State state);

  std::list<Member*> idle_;  // and the one that is visited
  std::list<Member*> marked_;
  std::list<Member*> again_;
  std::minstd_rand random_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_READY_LIST_H_
