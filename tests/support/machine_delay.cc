#include "tests/support/machine_delay.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvxfer::testing {

MachineDelay::MachineDelay() : waiting_before_(ReadyAndWaiting()), stolen_before_(Stolen()) {}

Duration MachineDelay::so_far() const {
  Duration sum = Stolen() - stolen_before_;
  for (const auto& [thread, waiting] : ReadyAndWaiting()) {
    const auto before = waiting_before_.find(thread);
    sum += waiting - (before == waiting_before_.end() ? Duration(0) : before->second);
  }
  return sum;
}

// schedstat: ns on a processor, ns ready to run, times it ran (Documentation/scheduler/
// sched-stats.rst). A thread may end while the folder is read.
MachineDelay::ByThread MachineDelay::ReadyAndWaiting() {
  ByThread all;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream file(task.path() / "schedstat");
    int64_t ran = 0;
    int64_t waited = 0;
    if (file >> ran >> waited) all[std::stoi(task.path().filename())] = Duration(waited);
  }
  return all;
}

// The first line of /proc/stat: "cpu", then user, nice, system, idle, iowait, irq, softirq and
// steal in ticks, of all processors together (proc(5)).
Duration MachineDelay::Stolen() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  int64_t ticks = 0;
  for (int column = 0; column < 8; ++column) file >> ticks;
  if (!file) return Duration(0);
  return std::chrono::nanoseconds(std::chrono::seconds(1)) / ::sysconf(_SC_CLK_TCK) * ticks;
}

}  // namespace kvxfer::testing
