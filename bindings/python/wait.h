// Waiting without the GIL, in turns short enough that Ctrl-C, and closing the agent, end it.

#ifndef KVXFER_BINDINGS_PYTHON_WAIT_H_
#define KVXFER_BINDINGS_PYTHON_WAIT_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "bindings/python/status.h"
#include "kvxfer/types.h"

namespace kvxfer::python {

// Seconds as Python has them; beyond a year it is a year.
inline Duration ToDuration(double seconds, const char* name) {
  if (std::isnan(seconds)) Refuse(std::string(name) + " is not a number; expected seconds");
  constexpr double kYear = 365.0 * 24 * 3600;
  const auto rounded = std::llround(std::clamp(seconds, -kYear, kYear) * 1e9);
  return Duration(rounded);
}

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

inline constexpr Duration kTurn = std::chrono::milliseconds(50);

// A scope without the GIL. Unlike pybind11's its end may be that of the thread: while the
// interpreter exits, whoever wants the GIL back is ended by it (pthread_exit), through this
// destructor.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Calls `wait` (Duration -> Status or StatusOr, which lets the GIL go by itself) until it says
// something else than kTimedOut, `timeout` seconds (empty: forever) are over, or a signal's
// handler raises. Between turns nothing is held: a handler may close what is waited for. `more`
// (-> bool) is asked there, and false ends it.
template <typename Wait, typename More>
auto WaitInTurns(std::optional<double> timeout, Wait wait, More more) {
  using Clock = std::chrono::steady_clock;
  const auto until = timeout.has_value() ? Clock::now() + ToDuration(*timeout, "timeout")
                                         : Clock::time_point::max();
  const auto is_late = [](const auto& said) {
    if constexpr (requires { said.status(); }) {
      return IsTimedOut(said.status());
    } else {
      return IsTimedOut(said);
    }
  };
  for (;;) {
    const auto left = until - Clock::now();
    auto said = wait(std::clamp<Duration>(left, Duration(0), kTurn));
    if (!is_late(said) || left <= kTurn) return said;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    if (!more()) return said;
  }
}

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_WAIT_H_
