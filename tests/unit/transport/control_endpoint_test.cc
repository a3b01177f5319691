// Two hubs in one thread, whose links have a control stream and no data.
#include "src/transport/control_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/endpoint_hub.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

using ::kvxfer::testing::kAmple;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class TestEndpoint final : public ControlEndpoint {
 public:
  TestEndpoint(EndpointHub* hub, PeerAddress peer) : ControlEndpoint(hub, std::move(peer)) {}
  TestEndpoint(EndpointHub* hub, Fd control, std::string from)
      : ControlEndpoint(hub, std::move(control), std::move(from)) {}

  EndpointInfo Describe() const override { return {.path = Name()}; }
  void Authorize() override { OnAuthorized(); }
  Posted Post(const Op&) override { return false; }
  void Fence(FenceScope) override {}
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion&,
                                                    std::string_view) override {
    return absl::UnimplementedError("no data");
  }

  void SayHello() override {
    if (has_hello) ControlEndpoint::Tell("hello");
  }
  absl::Status OnFrame(std::span<const std::byte> frame) override {
    if (Text(frame) == "nonsense") return absl::InvalidArgumentError("nonsense");
    if (greeting()) GoUp();
    frames.push_back(Text(frame));
    return absl::OkStatus();
  }
  void EndData(const absl::Status&) override { ++ends; }
  bool IsQuiet() const override { return quiet; }
  std::optional<Time> DataDeadline() const override { return data_deadline; }
  void OnDataDeadline(Time) override {
    data_deadline.reset();
    ++deadlines;
  }
  bool MustWait(ControlKind kind, bool after_message) const override {
    return kind == ControlKind::kFrame && (frames_wait || (frames_follow && after_message));
  }
  using ControlEndpoint::Activate;
  using ControlEndpoint::FinishDown;
  using ControlEndpoint::Reschedule;
  using ControlEndpoint::Tell;

  bool has_hello = true;
  bool quiet = true;
  bool frames_wait = false;    // all of them
  bool frames_follow = false;  // those behind a message, until the next Poll
  int ends = 0;
  int deadlines = 0;
  std::optional<Time> data_deadline;
  std::vector<std::string> frames;
};

struct Node final : EndpointHub::Client {
  explicit Node(Duration connect_timeout = kAmple, Service service = Service{1},
                bool has_data_streams = false)
      : hub({.backend = "test",
             .service = service,
             .incarnation = incarnation,
             .connect_timeout = connect_timeout,
             .has_data_streams = has_data_streams},
            this) {
    EXPECT_OK(hub.Open());
    EXPECT_OK(hub.Listen(AgentOptions{}, "", "`test.listen`"));
  }
  std::unique_ptr<ControlEndpoint> Accept(Incoming incoming) override {
    auto link =
        std::make_unique<TestEndpoint>(&hub, std::move(incoming.control), std::move(incoming.from));
    link->has_hello = says_hello;
    return link;
  }
  bool TakeStream(Fd& fd, const Preamble& preamble, const std::string& /*from*/) override {
    if (preamble.role != Role::kData) return false;
    hub.reactor().Remove(fd.get());
    data_streams.push_back(preamble.link);
    return true;
  }
  std::unique_ptr<TestEndpoint> Connect(const Node& to, std::optional<Incarnation> meant = {}) {
    absl::StatusOr<PeerAddress> peer = DecodeReachable(to.hub.Address(), HostIdentity{}, {});
    EXPECT_OK(peer.status());
    peer->incarnation = meant.value_or(to.incarnation);
    auto link = std::make_unique<TestEndpoint>(&hub, *std::move(peer));
    hub.Dial(link.get());
    return link;
  }
  void Turn() {
    std::array<Event, 8> events;
    if (hub.Begin(events, true)) hub.Work();
    const size_t count = hub.End();
    for (Event& event : std::span(events).first(count)) {
      kinds.push_back(event.kind);
      if (event.accepted != nullptr) {
        accepted.emplace_back(static_cast<TestEndpoint*>(event.accepted.release()));
      }
      if (event.kind == EventKind::kMessage) messages.push_back(Text(event.message));
      if (event.kind == EventKind::kDown) why = event.status;
    }
  }
  bool Saw(EventKind kind) const { return std::ranges::find(kinds, kind) != kinds.end(); }

  const Incarnation incarnation = Incarnation::Random();
  bool says_hello = true;
  std::vector<LinkId> data_streams;  // the endpoints that they named
  EndpointHub hub;
  std::vector<std::unique_ptr<TestEndpoint>> accepted;
  std::vector<EventKind> kinds;
  std::vector<std::string> messages;
  absl::Status why;  // of the last kDown
};

// Turns both until `done`. Sleeps where neither has work: a lost wake-up or timer shows.
bool Until(Node& a, Node& b, const std::function<bool()>& done) {
  const Time end = Now() + kAmple;
  while (!done()) {
    if (Now() >= end) return false;
    if (!a.hub.HasWork() && !b.hub.HasWork()) {
      std::array<pollfd, 2> fds{pollfd{.fd = a.hub.fd(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = b.hub.fd(), .events = POLLIN, .revents = 0}};
      if (::poll(fds.data(), fds.size(), static_cast<int>(kAmple / std::chrono::milliseconds(1))) ==
          0) {
        return done();
      }
    }
    a.Turn();
    b.Turn();
  }
  return true;
}

struct Pair {
  bool Connect() {
    out = initiator.Connect(target);
    return net::Until(initiator, target, [&] { return out->up() && !target.accepted.empty(); });
  }
  TestEndpoint& in() { return *target.accepted.front(); }
  bool Until(const std::function<bool()>& done) { return net::Until(initiator, target, done); }

  Node initiator;
  Node target;
  std::unique_ptr<TestEndpoint> out;
};

TEST(NetControlEndpoint, IsUpOnceTheHelloHasCome) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  EXPECT_EQ(pair.initiator.kinds, std::vector{EventKind::kConnected});
  EXPECT_EQ(pair.target.kinds, std::vector{EventKind::kAccepted});
  EXPECT_EQ(pair.out->frames, std::vector<std::string>{"hello"});
  EXPECT_EQ(pair.out->Describe().path, pair.target.hub.ListenAddress());
}

TEST(NetControlEndpoint, CarriesMessagesAndFramesBothWaysInOrder) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  EXPECT_TRUE(pair.out->Send(Bytes("one")));
  pair.out->Tell("frame");
  EXPECT_TRUE(pair.out->Send(Bytes("two")));
  EXPECT_TRUE(pair.in().Send(Bytes("three")));
  ASSERT_TRUE(pair.Until(
      [&] { return pair.target.messages.size() == 2 && pair.initiator.messages.size() == 1; }));
  EXPECT_EQ(pair.target.messages, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(pair.in().frames, std::vector<std::string>{"frame"});
}

TEST(NetControlEndpoint, ItTakesShortFramesUntilItIsAuthorised) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  const std::string longest(kMaxFirstMessageBytes, 'm');
  EXPECT_TRUE(pair.out->Send(Bytes(longest)));
  ASSERT_TRUE(pair.Until([&] { return pair.target.messages.size() == 1; }));
  EXPECT_TRUE(pair.out->Send(Bytes(longest + "m")));
  ASSERT_TRUE(pair.Until([&] { return pair.in().down() && pair.initiator.Saw(EventKind::kDown); }));
  EXPECT_THAT(std::string(pair.target.why.message()), HasSubstr("16385 bytes before"));
  EXPECT_EQ(pair.target.messages.size(), 1u);
}

TEST(NetControlEndpoint, MessagesThatFindNoRoomAreRefusedAndWhatWasTakenArrives) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.in().Authorize();
  const std::string message(kMaxMessageBytes, 'm');
  EXPECT_FALSE(pair.out->Send(Bytes(message + "m")));
  size_t taken = 0;
  while (pair.out->Send(Bytes(message))) ++taken;
  EXPECT_GT(taken, 0u);
  ASSERT_TRUE(pair.Until([&] { return pair.target.messages.size() == taken; }));
  EXPECT_TRUE(pair.out->Send(Bytes(message)));
}

TEST(NetControlEndpoint, ShutdownTellsThePeerWhy) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.out->Shutdown(absl::CancelledError("enough"));
  EXPECT_EQ(pair.out->ends, 1);
  EXPECT_FALSE(pair.out->Send(Bytes("late")));
  ASSERT_TRUE(pair.Until([&] { return pair.in().down() && pair.initiator.Saw(EventKind::kDown); }));
  EXPECT_EQ(pair.target.why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pair.target.why.message()), HasSubstr("closed the connection"));
  EXPECT_THAT(std::string(pair.target.why.message()), HasSubstr("enough"));
  EXPECT_THAT(std::string(pair.initiator.why.message()), HasSubstr("test peer 127.0.0.1:"));
}

TEST(NetControlEndpoint, DownWaitsUntilTheDataIsQuiet) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.in().quiet = false;
  pair.out->Shutdown(absl::CancelledError("enough"));
  ASSERT_TRUE(pair.Until([&] { return pair.in().down(); }));
  pair.target.Turn();
  EXPECT_FALSE(pair.target.Saw(EventKind::kDown));
  pair.in().quiet = true;
  pair.in().FinishDown();
  pair.in().FinishDown();
  pair.target.Turn();
  EXPECT_EQ(std::ranges::count(pair.target.kinds, EventKind::kDown), 1);
}

TEST(NetControlEndpoint, AFrameThatMakesNoSenseEndsTheLinkAndThePeerHearsIt) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.out->Tell("nonsense");
  ASSERT_TRUE(pair.Until([&] { return pair.out->down() && pair.in().down(); }));
  EXPECT_EQ(pair.target.why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pair.initiator.why.message()), HasSubstr("nonsense"));
}

TEST(NetControlEndpoint, APeerThatGoesIsNoticed) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.target.accepted.clear();
  ASSERT_TRUE(pair.Until([&] { return pair.out->down(); }));
  EXPECT_EQ(pair.initiator.why.code(), absl::StatusCode::kUnavailable);
}

TEST(NetControlEndpoint, APeerThatDoesNotSayHelloIsGivenUp) {
  Node initiator(std::chrono::milliseconds(300));
  Node target;
  target.says_hello = false;
  auto link = initiator.Connect(target);
  ASSERT_TRUE(Until(initiator, target, [&] { return initiator.Saw(EventKind::kDown); }));
  EXPECT_FALSE(initiator.Saw(EventKind::kConnected));
  EXPECT_EQ(initiator.why.code(), absl::StatusCode::kUnavailable);
}

TEST(NetControlEndpoint, AMessageBeforeTheHelloEndsTheLink) {
  Node initiator;
  Node target;
  target.says_hello = false;
  auto link = initiator.Connect(target);
  ASSERT_TRUE(Until(initiator, target, [&] { return !target.accepted.empty(); }));
  EXPECT_TRUE(target.accepted.front()->Send(Bytes("early")));
  ASSERT_TRUE(Until(initiator, target, [&] { return initiator.Saw(EventKind::kDown); }));
  EXPECT_EQ(initiator.why.code(), absl::StatusCode::kInvalidArgument);
}

TEST(NetControlEndpoint, AnotherIncarnationIsToldApart) {
  Node initiator;
  Node target;
  auto link = initiator.Connect(target, Incarnation::Random());
  ASSERT_TRUE(Until(initiator, target, [&] { return initiator.Saw(EventKind::kDown); }));
  EXPECT_EQ(initiator.why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(target.kinds.empty());
}

TEST(NetControlEndpoint, WhoMeansAnotherBackendIsNotAccepted) {
  Node initiator(kAmple, Service{0});
  Node target;
  auto link = initiator.Connect(target);
  ASSERT_TRUE(Until(initiator, target, [&] { return initiator.Saw(EventKind::kDown); }));
  EXPECT_TRUE(target.kinds.empty());
}

TEST(NetControlEndpoint, DeadlinesOfItsDataAreKept) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.out->data_deadline = Now() + std::chrono::milliseconds(20);
  pair.out->Reschedule();
  pair.initiator.hub.SetTimer();
  ASSERT_TRUE(pair.Until([&] { return pair.out->deadlines == 1; }));
}

TEST(NetControlEndpoint, OfManyDeadlinesTheNearestWakes) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  auto other = pair.initiator.Connect(pair.target);
  ASSERT_TRUE(pair.Until([&] { return other->up(); }));
  const auto set = [&](TestEndpoint& endpoint, std::optional<Time> when) {
    endpoint.data_deadline = when;
    endpoint.Reschedule();
    pair.initiator.hub.SetTimer();
  };
  set(*pair.out, Now() + std::chrono::hours(1));
  set(*other, Now() + std::chrono::milliseconds(20));
  ASSERT_TRUE(pair.Until([&] { return other->deadlines == 1; }));
  EXPECT_EQ(pair.out->deadlines, 0);
  // One that is taken back does nothing when its time comes.
  set(*other, Now() + std::chrono::milliseconds(20));
  set(*other, std::nullopt);
  set(*pair.out, Now() + std::chrono::milliseconds(40));
  ASSERT_TRUE(pair.Until([&] { return pair.out->deadlines == 1; }));
  EXPECT_EQ(other->deadlines, 1);
}

TEST(NetControlEndpoint, AFrameThatHasToWaitKeepsItsPlaceAndCostsNothing) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.in().frames_wait = true;
  pair.out->Tell("frame");
  EXPECT_TRUE(pair.out->Send(Bytes("message")));
  for (int i = 0; i < 100; ++i) {
    pair.initiator.Turn();
    pair.target.Turn();
  }
  EXPECT_FALSE(pair.target.hub.HasWork());
  EXPECT_TRUE(pair.in().frames.empty());
  EXPECT_TRUE(pair.target.messages.empty());
  pair.in().frames_wait = false;
  pair.in().Activate();
  ASSERT_TRUE(pair.Until([&] { return pair.target.messages.size() == 1; }));
  EXPECT_EQ(pair.in().frames, std::vector<std::string>{"frame"});
}

TEST(NetControlEndpoint, AFrameMayWaitUntilTheAgentHasSeenTheMessageBeforeIt) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  pair.in().frames_follow = true;
  EXPECT_TRUE(pair.out->Send(Bytes("message")));
  pair.out->Tell("frame");
  while (pair.target.messages.empty()) {
    pair.target.Turn();
    EXPECT_TRUE(pair.in().frames.empty());
  }
  ASSERT_TRUE(pair.Until([&] { return pair.in().frames.size() == 1; }));
}

TEST(NetEndpointHub, ReadsTheEndpointThatBroughtTheLastMessage) {
  Pair pair;
  ASSERT_TRUE(pair.Connect());
  const auto look = [&] {
    std::array<Event, 8> events;
    if (pair.target.hub.Begin(events, /*readable=*/false)) {
      pair.target.hub.ReadExpected();
      pair.target.hub.Work();
    }
    return pair.target.hub.End();
  };
  EXPECT_TRUE(pair.out->Send(Bytes("first")));
  EXPECT_EQ(look(), 0u);
  ASSERT_TRUE(pair.Until([&] { return pair.target.messages.size() == 1; }));
  EXPECT_TRUE(pair.out->Send(Bytes("second")));
  EXPECT_EQ(look(), 1u);
  // It may go meanwhile.
  pair.target.accepted.clear();
  EXPECT_EQ(look(), 0u);
}

TEST(NetEndpointHub, WithDataStreamsAnEndpointIsReportedWhenTheBackendSaysSo) {
  Node initiator;
  Node target(kAmple, Service{1}, /*has_data_streams=*/true);
  auto out = initiator.Connect(target);
  ASSERT_TRUE(Until(initiator, target, [&] { return !target.hub.endpoints().empty(); }));
  auto* const in = static_cast<TestEndpoint*>(target.hub.endpoints().front());
  for (int i = 0; i < 100; ++i) {
    initiator.Turn();
    target.Turn();
  }
  EXPECT_FALSE(in->up());
  EXPECT_TRUE(target.kinds.empty());
  target.hub.Report(in);
  ASSERT_TRUE(Until(initiator, target, [&] { return out->up() && !target.accepted.empty(); }));
  EXPECT_TRUE(in->up());
  EXPECT_EQ(target.kinds, std::vector{EventKind::kAccepted});
}

TEST(NetEndpointHub, AnEndpointThatNoDataStreamJoinsIsClosedAndNeverReported) {
  Node initiator;
  Node target(std::chrono::milliseconds(100), Service{1}, /*has_data_streams=*/true);
  auto out = initiator.Connect(target);
  ASSERT_TRUE(Until(initiator, target, [&] { return initiator.Saw(EventKind::kDown); }));
  EXPECT_TRUE(target.kinds.empty());
  EXPECT_TRUE(target.hub.endpoints().empty());
}

TEST(NetEndpointHub, HalfOpenEndpointsAreBoundedAndGoWithTheHub) {
  constexpr size_t kMost = 256;
  Node initiator;
  Node target(kAmple, Service{1}, /*has_data_streams=*/true);
  std::vector<std::unique_ptr<TestEndpoint>> out;
  while (out.size() < kMost + 1) {
    out.push_back(initiator.Connect(target));
    const size_t want = std::min(out.size(), kMost);
    ASSERT_TRUE(Until(initiator, target, [&] { return target.hub.endpoints().size() == want; }));
  }
  // The oldest had to go.
  ASSERT_TRUE(Until(initiator, target, [&] { return out.front()->down(); }));
  EXPECT_FALSE(out[1]->down());
  target.hub.Close();
  EXPECT_TRUE(target.hub.endpoints().empty());
}

TEST(NetEndpointHub, OtherStreamsGoToTheBackendFromEachListener) {
  Node node(kAmple, Service{1}, /*has_data_streams=*/true);
  ASSERT_OK_AND_ASSIGN(const std::vector<SocketAddress> any,
                       Resolve("127.0.0.1:0", 0, Names::kNumericOnly));
  ASSERT_OK_AND_ASSIGN(const SocketAddress also, node.hub.ListenAlso(any.front()));
  EXPECT_NE(also.ToString(), node.hub.ListenAddress());
  std::vector<Fd> streams;
  for (const SocketAddress& at : {node.hub.Own().candidates.front(), also}) {
    ASSERT_OK_AND_ASSIGN(Fd stream, StartConnect(at));
    pollfd writable{.fd = stream.get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&writable, 1, 10'000), 1);
    std::array<std::byte, kPreambleBytes> bytes;
    Encode(Preamble{.role = Role::kData,
                    .rails = 1,
                    .link = {static_cast<uint8_t>(streams.size())},
                    .service = Service{1}},
           bytes);
    ASSERT_EQ(::send(stream.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{48});
    streams.push_back(std::move(stream));
    const Time end = Now() + kAmple;
    while (node.data_streams.size() < streams.size() && Now() < end) node.Turn();
  }
  EXPECT_EQ(node.data_streams, (std::vector<LinkId>{{0}, {1}}));
}

TEST(NetControlEndpoint, EndpointsMayOutliveTheirHub) {
  std::unique_ptr<TestEndpoint> out;
  {
    Pair pair;
    ASSERT_TRUE(pair.Connect());
    out = std::move(pair.out);
  }
  EXPECT_TRUE(out->down());
  EXPECT_EQ(out->ends, 1);
  EXPECT_FALSE(out->Send(Bytes("late")));
  out->Shutdown(absl::OkStatus());
}

TEST(NetEndpointHub, ListensWhereItsOptionSays) {
  Node node;
  EndpointHub other({.backend = "test"}, &node);
  ASSERT_OK(other.Open());
  const absl::Status taken =
      other.Listen(AgentOptions{}, node.hub.ListenAddress(), "`test.listen`");
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status bad = other.Listen(AgentOptions{}, "nowhere:x", "`test.listen`");
  EXPECT_THAT(std::string(bad.message()), HasSubstr("`test.listen`"));
  AgentOptions options;
  options.listen = "nowhere:x";
  EXPECT_THAT(std::string(other.Listen(options, "", "`test.listen`").message()),
              HasSubstr("`listen`"));
}

TEST(NetEndpointHub, WhatIsAdvertisedHasItsOwnPort) {
  Node node;
  AgentOptions options;
  for (const char* advertise : {"127.0.0.1:9", "127.0.0.1", "[::1]:9", "[::1]", "::1"}) {
    EndpointHub hub({.backend = "test"}, &node);
    ASSERT_OK(hub.Open());
    options.advertise = advertise;
    ASSERT_OK(hub.Listen(options, "", "")) << advertise;
    ASSERT_OK_AND_ASSIGN(const PeerAddress told, DecodeReachable(hub.Address(), {}, {}));
    EXPECT_TRUE(told.candidates.front().IsLoopback()) << advertise;
    const std::string listening = hub.ListenAddress();
    EXPECT_TRUE(listening.ends_with(":" + std::to_string(told.candidates.front().port())))
        << advertise << " gave " << told.candidates.front().ToString();
  }
}

}  // namespace
}  // namespace kvxfer::net
