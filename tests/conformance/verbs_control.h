// What the cases of the control pair of verbs have in common.
#ifndef KVXFER_TESTS_CONFORMANCE_VERBS_CONTROL_H_
#define KVXFER_TESTS_CONFORMANCE_VERBS_CONTROL_H_

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "kvxfer/options.h"
#include "src/backends/verbs/message_parts.h"
#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {

inline Flavour Controlled(ControlCarrier control) {
  Flavour flavour = VerbsDeviceFlavour();
  flavour.control = control;
  flavour.name += control == ControlCarrier::kAuto  ? "Auto"
                  : control == ControlCarrier::kTcp ? "Tcp"
                                                    : "Rdma";
  return flavour;
}

// Messages both ways: what was accepted at one side is what comes at the other.
class VerbsControl : public VerbsDevice {
 protected:
  void Begin(int devices = 1) {
    Use(Devices(devices, devices));
    ASSERT_NO_FATAL_FAILURE(Start(64 * kOp));
    ASSERT_THAT(out().path(), ::testing::HasSubstr("control by SEND (i0:1 → t0:1)"));
    ASSERT_THAT(in().path(), ::testing::HasSubstr("control by SEND (t0:1 → i0:1)"));
    out().messages.clear();
  }
  bool fixed() const { return GetParam().control == ControlCarrier::kRdma; }
  std::string Message(size_t bytes) {
    std::string message(bytes, '\0');
    for (char& c : message) c = static_cast<char>(random_());
    return message;
  }
  // Sizes around the borders of parts, and up to the largest.
  std::vector<std::string> Messages() {
    std::vector<std::string> messages;
    for (const size_t bytes : {size_t{0}, size_t{1}, verbs::kMaxPartBytes - 1, verbs::kMaxPartBytes,
                               verbs::kMaxPartBytes + 1, size_t{100}, 2 * verbs::kMaxPartBytes,
                               3 * verbs::kMaxPartBytes + 5, caps().max_message_bytes, size_t{7}}) {
      messages.push_back(Message(bytes));
    }
    return messages;
  }
  // Sends as much of `messages` as is taken.
  static void Offer(TestLink& link, const std::vector<std::string>& messages, size_t& sent) {
    while (sent < messages.size() && link.Send(messages[sent])) ++sent;
  }
  // A message after "before".
  bool ComesAfter() {
    bool sent = false;
    return pair_->Until([&] {
      sent = sent || out().Send("after");
      return in().messages == std::vector<std::string>{"before", "after"} || out().down;
    }) && !out().down;
  }
  // Both ways at once. False: a side is down, or they do not come.
  bool Exchange(const std::vector<std::string>& messages) {
    size_t there = 0;
    size_t back = 0;
    const size_t before_in = in().messages.size();
    const size_t before_out = out().messages.size();
    return pair_->Until([&] {
      Offer(out(), messages, there);
      Offer(in(), messages, back);
      return (in().messages.size() - before_in == messages.size() &&
              out().messages.size() - before_out == messages.size()) ||
             out().down || in().down;
    }) && !out().down &&
           !in().down;
  }
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_CONFORMANCE_VERBS_CONTROL_H_
