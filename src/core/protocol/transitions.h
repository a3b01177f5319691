// A state machine's table of transitions: what all of them ask of theirs.

#ifndef KVXFER_CORE_PROTOCOL_TRANSITIONS_H_
#define KVXFER_CORE_PROTOCOL_TRANSITIONS_H_

#include <algorithm>
#include <iterator>

namespace kvxfer {

// The state that `event` leads to from `from`, by the table's rows {from, event, to}. Null: no row
// has the two.
template <typename Table, typename State, typename Event>
const State* NextState(const Table& table, State from, Event event) {
  const auto row = std::ranges::find_if(
      table, [&](const auto& one) { return one.from == from && one.event == event; });
  return row == std::ranges::end(table) ? nullptr : &row->to;
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_TRANSITIONS_H_
