// How long threads of this process waited for a processor, whoever had it: what a bound of time is
// stretched by where it is a promise of ours and no promise of the machine's. On a machine that has
// a processor for each of them that is next to nothing; a thread of ours that took one for too long
// shows there, not under load.
#ifndef KVXFER_TESTS_SUPPORT_MACHINE_DELAY_H_
#define KVXFER_TESTS_SUPPORT_MACHINE_DELAY_H_

#include <map>

#include "kvxfer/types.h"

namespace kvxfer::testing {

class MachineDelay {
 public:
  // Counts from now on.
  MachineDelay();

  // The time that threads were ready and did not run, added up over those that are there now, and
  // the time that the hypervisor gave to others.
  Duration so_far() const;

 private:
  using ByThread = std::map<int, Duration>;

  static ByThread ReadyAndWaiting();
  static Duration Stolen();

  const ByThread waiting_before_;
  const Duration stolen_before_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_MACHINE_DELAY_H_
