// How much each side may send over a control pair, as one side sees it.
//
// A side keeps receives posted: some for parts of messages, and one for a SEND that only returns
// credit. Each SEND says how many parts its sender has taken, and up to which number it has posted
// receives. A part is sent only if a receive for it is known to be posted. A SEND that only returns
// credit needs none to be known: it is sent only when the peer has used up all that it was granted
// (`due`), so the one before it has been taken, and the receive that is kept for it is posted
// again. Nobody waits for an answer to it. So the two sides can neither send what finds no receive
// nor wait for each other (tests/unit/backends/verbs/send_credit_test.cc tries every order).
//
// How many receives a side keeps follows the peer: twice as many, and one more, each time the peer
// has used up a grant and says that a part of it had to wait; half as many each time none had to.
//
// Numbers are modulo 2^32. Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_SEND_CREDIT_H_
#define KVXFER_BACKENDS_VERBS_SEND_CREDIT_H_

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvxfer::verbs {

class SendCredit {
 public:
  // The receives for parts that a side keeps, and those of a side whose peer says little. One more
  // is kept for credit.
  static constexpr uint32_t kMost = 7;
  static constexpr uint32_t kFewest = 1;

  // What each SEND says of the other direction.
  struct Report {
    uint32_t received = 0;  // parts that its sender has taken
    uint32_t granted = 0;   // the first number that has no receive yet
  };

  // --- sending ---
  bool may_send() const { return sent_ != granted_; }
  // The number of the part that is sent now.
  uint32_t OnSend() { return sent_++; }
  uint32_t sent() const { return sent_; }
  // Parts that the peer is known to have taken.
  uint32_t taken() const { return taken_; }
  // For a SEND that is posted now.
  Report MakeReport() {
    reported_ = posted_;
    return {.received = received_, .granted = posted_};
  }
  // Whether the peer cannot send before it gets a report, and there is something to report.
  bool due() const { return received_ == reported_ && posted_ != reported_; }

  // --- receiving ---
  // The report of a SEND that has arrived. False: it is impossible.
  bool OnReport(const Report& report) {
    if (report.received - taken_ > sent_ - taken_) return false;
    if (report.granted - granted_ > kMost || report.granted - report.received > kMost) return false;
    taken_ = report.received;
    granted_ = report.granted;
    return true;
  }
  // Part `number` was taken before.
  bool IsOld(uint32_t number) const { return number - received_ > UINT32_MAX / 2; }
  // Takes part `number`; its receive may be posted again. `waited`: the peer had no credit for it
  // at first. False: no such part was granted.
  bool OnPart(uint32_t number, bool waited) {
    if (number != received_ || received_ == reported_) return false;
    ++received_;
    waited_ = waited_ || waited;
    if (received_ == reported_) {
      keep_ = std::exchange(waited_, false) ? std::min(2 * keep_ + 1, kMost)
                                            : std::max(keep_ / 2, kFewest);
    }
    return true;
  }
  // The next part came by another way.
  void OnOther() { ++received_; }
  uint32_t received() const { return received_; }
  // How many receives for parts to post now.
  uint32_t to_post() const {
    const uint32_t open = posted_ - received_;
    return open < keep_ ? keep_ - open : 0;
  }
  void OnPosted() { ++posted_; }

 private:
  // Parts to the peer: sent, known to be taken, and the first that has no credit.
  uint32_t sent_ = 0;
  uint32_t taken_ = 0;
  uint32_t granted_ = kFewest;
  // Parts of the peer: taken; the first that has no receive; the same as the peer was last told.
  uint32_t received_ = 0;
  uint32_t posted_ = kFewest;
  uint32_t reported_ = kFewest;
  uint32_t keep_ = kFewest;
  bool waited_ = false;  // the peer, for one of the parts that were granted last
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SEND_CREDIT_H_
