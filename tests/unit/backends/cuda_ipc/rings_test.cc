// What carries the messages of cuda_ipc: rings, or the control stream, as both sides want it.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "kvxfer/options.h"
#include "tests/support/backend_pair.h"
#include "tests/support/flavour.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

std::unique_ptr<Party> PartyWith(ControlCarrier control, const std::string& name) {
  Flavour flavour = CudaIpcFlavour();
  flavour.control = control;
  auto made = Party::Make(flavour, name);
  EXPECT_OK(made);
  return made.ok() ? *std::move(made) : nullptr;
}

struct Linked {
  std::unique_ptr<Party> a;  // connects
  std::unique_ptr<Party> b;
  TestLink* out = nullptr;

  Linked(ControlCarrier here, ControlCarrier there)
      : a(PartyWith(here, "a")), b(PartyWith(there, "b")) {
    auto link = a->Connect(*b);
    EXPECT_OK(link);
    out = *link;
  }
  ~Linked() {
    if (!out->down) out->endpoint->Shutdown(absl::CancelledError("the test is over"));
    EXPECT_TRUE(Until([&] { return out->down && (b->links.empty() || b->links.front()->down); }));
  }
  TestLink& in() { return *b->links.front(); }
  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      a->Turn();
      b->Turn();
      return done();
    });
  }
  // Both sides send over this.
  bool Over(const std::string& carrier) {
    const auto over = [&](TestLink& link) {
      return absl::StrContains(link.path(), "control over " + carrier);
    };
    return Until([&] { return out->connected && !b->links.empty() && over(*out) && over(in()); });
  }
};

TEST(CudaIpcRings, TheCapabilitySaysWhatTheOptionAllows) {
  using enum ControlCarrier;
  EXPECT_EQ(PartyWith(kAuto, "a")->capabilities().carrier, kShm);
  EXPECT_EQ(PartyWith(kShm, "a")->capabilities().carrier, kShm);
  EXPECT_EQ(PartyWith(kTcp, "a")->capabilities().carrier, kTcp);
}

TEST(CudaIpcRings, CarryMessagesWhereBothSidesWantThem) {
  for (const ControlCarrier here : {ControlCarrier::kAuto, ControlCarrier::kShm}) {
    for (const ControlCarrier there : {ControlCarrier::kAuto, ControlCarrier::kShm}) {
      Linked pair(here, there);
      EXPECT_TRUE(pair.Over("shm")) << pair.out->path();
    }
  }
}

TEST(CudaIpcRings, OneSideThatKeepsToTcpKeepsBothThere) {
  for (const bool here : {true, false}) {
    Linked pair(here ? ControlCarrier::kTcp : ControlCarrier::kAuto,
                here ? ControlCarrier::kAuto : ControlCarrier::kTcp);
    ASSERT_TRUE(pair.Over("tcp")) << pair.out->path();
    ASSERT_TRUE(pair.out->Send("there"));
    ASSERT_TRUE(pair.Until([&] { return pair.in().messages.size() == 1; }));
    pair.in().endpoint->Authorize();
    ASSERT_TRUE(pair.Until([&] { return pair.in().Send("and back"); }));
    ASSERT_TRUE(pair.Until([&] { return pair.out->messages.size() == 1; }));
    EXPECT_TRUE(pair.Over("tcp")) << pair.out->path();
  }
}

// Expect that the link goes down at both sides, and that both say why.
TEST(CudaIpcRings, WhoRequiresThemEndsALinkWithoutThem) {
  for (const bool here : {true, false}) {
    Linked pair(here ? ControlCarrier::kShm : ControlCarrier::kTcp,
                here ? ControlCarrier::kTcp : ControlCarrier::kShm);
    ASSERT_TRUE(
        pair.Until([&] { return pair.out->down && !pair.b->links.empty() && pair.in().down; }));
    EXPECT_TRUE(absl::StrContains(pair.out->why.message(), "rings")) << pair.out->why;
    EXPECT_TRUE(absl::StrContains(pair.in().why.message(), "rings")) << pair.in().why;
    EXPECT_TRUE(absl::StrContains(pair.in().why.message(), "KVXFER_CONTROL")) << pair.in().why;
  }
}

// The messages of a beginning go over the stream, later ones through the ring: in one order, once.
TEST(CudaIpcRings, TheOrderStaysWhenMessagesGoOverToTheRing) {
  for (const bool to_target : {true, false}) {
    Linked pair(ControlCarrier::kAuto, ControlCarrier::kAuto);
    ASSERT_TRUE(pair.Until([&] { return pair.out->connected && !pair.b->links.empty(); }));
    pair.in().endpoint->Authorize();
    TestLink& from = to_target ? *pair.out : pair.in();
    TestLink& to = to_target ? pair.in() : *pair.out;
    std::vector<std::string> sent;
    for (size_t i = 0; i < 300; ++i) {
      // Of all sizes, and more than the ring has space for before anybody reads.
      std::string message = std::to_string(i) + std::string(i % 7 == 0 ? 9000 : i % 300, 'x');
      if (from.Send(message)) sent.push_back(std::move(message));
      if (i % 5 == 0) pair.a->Turn();
      if (i % 3 == 0) pair.b->Turn();
    }
    EXPECT_GT(sent.size(), 200u);
    ASSERT_TRUE(pair.Until([&] { return to.messages.size() >= sent.size(); }));
    EXPECT_EQ(to.messages, sent);
    EXPECT_TRUE(pair.Over("shm"));
  }
}

}  // namespace
}  // namespace kvxfer::testing
