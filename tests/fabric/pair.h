// Two sides in one process, both polled: what most of the contract is about.
#ifndef KVXFER_TESTS_FABRIC_PAIR_H_
#define KVXFER_TESTS_FABRIC_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/fabric/side.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {

// Polls by `step` until `done` or kAmple has passed; the last answer.
template <typename Step, typename Predicate>
bool StepUntil(Step step, Predicate done) {
  const Time end = Now() + kAmple;
  for (int i = 0; !done(); ++i) {
    if (Now() > end) return false;
    step();
    if (i % 64 == 63) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

class FabricPair : public ::testing::Test {
 protected:
  void Step() {
    initiator.Poll();
    target.Poll();
  }
  template <typename Predicate>
  bool Until(Predicate done) {
    return StepUntil([this] { Step(); }, done);
  }
  bool AllEnded() {
    return Until([this] { return initiator.outstanding() == 0; });
  }
  // Polls for so long: for what must not happen.
  void Linger(Duration time) {
    const Time end = Now() + time;
    while (Now() < end) {
      Step();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // Again while there is no room.
  template <typename Call>
  ssize_t Insist(Call call) {
    ssize_t result = -FI_EAGAIN;
    Until([&] { return (result = call()) != -FI_EAGAIN; });
    return result;
  }
  ssize_t Put(Memory* from, const Memory& to, const Write& write) {
    return Insist([&] { return initiator.Post(peer, from, to.remote(), write); });
  }

  bool HasData() const { return initiator.info().domain_attr->cq_data_size > 0; }
  // What fits into one message, of what the test wants.
  size_t Fitting(size_t bytes) const {
    return std::min<size_t>(bytes, initiator.info().ep_attr->max_msg_size);
  }
  // How many of `ended` failed; forgets them.
  int TakeErrors() {
    const auto errors = std::count_if(initiator.ended.begin(), initiator.ended.end(),
                                      [](const Ended& e) { return e.error != 0; });
    initiator.ended.clear();
    return static_cast<int>(errors);
  }

  std::mt19937_64 random{TestSeed()};
  Side initiator;
  Side target;
  const fi_addr_t peer = initiator.Insert(target.name());
};

inline std::span<const std::byte> Part(Memory& memory, size_t from, size_t bytes) {
  return memory.bytes().subspan(from, bytes);
}

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_FABRIC_PAIR_H_
