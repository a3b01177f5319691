// What the ucx backend does with a peer that does as it likes: one that is played here frame by
// frame, over a worker of its own.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/worker.h"
#include "src/core/base/own_fd.h"
#include "src/transport/host/message_order.h"
#include "src/transport/sockets/socket.h"
#include "tests/support/backend_pair.h"
#include "tests/support/child_process.h"
#include "tests/support/flavour.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ucx::FrameHead;
using ucx::FrameKind;

constexpr uint64_t kTransfer = 7;

struct Heard {
  FrameHead head;
  std::string body;
};

class PlayedPeer : private ucx::FrameSink {
 public:
  // Null: a failure was reported.
  static std::unique_ptr<PlayedPeer> Make(const Flavour& flavour) {
    std::unique_ptr<PlayedPeer> out(new PlayedPeer);
    const AgentOptions agent = OptionsFor(flavour, "played");
    const auto options = ReadOptions<ucx::UcxOptions>("ucx", agent);
    EXPECT_OK(options.status());
    if (!options.ok()) return nullptr;
    auto worker = ucx::Worker::Create(agent, *options, out.get());
    EXPECT_OK(worker.status());
    if (!worker.ok()) return nullptr;
    out->worker_ = *std::move(worker);
    return out;
  }

  ~PlayedPeer() override { Close(); }

  std::string Address() const {
    return Encode(ucx::Address{.incarnation = self_, .place = ucx::kByWorker + worker_->address()});
  }

  // A new endpoint to the worker of `party`; the one before is closed.
  void ConnectTo(Party& party) {
    party_ = &party;
    ConnectTo(party.backend().Describe().address);
  }
  void ConnectTo(const std::string& backend) {
    Close();
    auto address = ucx::DecodeAddress(backend);
    ASSERT_OK(address.status());
    target_ = address->incarnation;
    by_socket_ = address->place.front() == ucx::kBySocket;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    const std::string where = address->place.substr(1);
    net::SocketAddress at;
    if (by_socket_) {
      ASSERT_OK_AND_ASSIGN(const auto found, net::Resolve(where, 0, net::Names::kNumericOnly));
      at = found.front();
      params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
      params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
      params.sockaddr = {.addr = at.get(), .addrlen = at.length};
    } else {
      params.field_mask |= UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
      params.address = reinterpret_cast<const ucp_address_t*>(where.data());
    }
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    ASSERT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }

  void SayHello(uint64_t cookie, uint64_t path) { SayHello(cookie, path, worker_->address()); }
  // It names that worker as its own.
  void SayHello(uint64_t cookie, uint64_t path, const std::string& worker,
                bool reports_failure = true) {
    Say({.kind = FrameKind::kHello}, Encode(ucx::Hello{.reports_failure = reports_failure,
                                                       .cookie = cookie,
                                                       .path = path,
                                                       .target = target_,
                                                       .dialler = self_,
                                                       .host = host,
                                                       .worker = worker}));
  }

  // Encodes, sends and waits until UCX has taken it.
  void Say(FrameHead head, const std::string& body = "") {
    head.bytes = static_cast<uint32_t>(body.size());
    std::vector<std::byte> frame(ucx::kFrameHeadBytes + body.size());
    Encode(head, std::span(frame).first<ucx::kFrameHeadBytes>());
    std::ranges::copy(std::as_bytes(std::span(body)), frame.begin() + ucx::kFrameHeadBytes);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    if (by_socket_ && head.kind == FrameKind::kHello) param.flags |= UCP_AM_SEND_FLAG_REPLY;
    MessageIsSent();
    const ucs_status_ptr_t sent = ucp_am_send_nbx(endpoint_, ucx::Worker::kFrameId, nullptr, 0,
                                                  frame.data(), frame.size(), &param);
    ASSERT_FALSE(UCS_PTR_IS_ERR(sent));
    if (sent == nullptr) return;
    // A connection takes both.
    ASSERT_TRUE(Eventually(kAmple, [&] {
      Turn();
      party_->Turn();
      return ucp_request_check_status(sent) != UCS_INPROGRESS;
    }));
    ucp_request_free(sent);
  }

  void Turn() {
    while (worker_->Progress() != 0) {
    }
  }

  size_t Count(FrameKind kind) const {
    return static_cast<size_t>(std::ranges::count_if(
        heard, [kind](const Heard& frame) { return frame.head.kind == kind; }));
  }

  std::vector<Heard> heard;
  HostIdentity host{};  // that its hellos name

 private:
  PlayedPeer() = default;

  void OnFrame(std::span<const std::byte> frame, ucp_ep_h) override {
    auto head = ucx::DecodeFrameHead(frame);
    ASSERT_OK(head.status());
    heard.push_back({.head = *head,
                     .body = {reinterpret_cast<const char*>(frame.data()) + ucx::kFrameHeadBytes,
                              frame.size() - ucx::kFrameHeadBytes}});
  }

  void Close() {
    if (endpoint_ == nullptr) return;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
    if (closing == nullptr || UCS_PTR_IS_ERR(closing)) return;
    EXPECT_TRUE(Eventually(kAmple, [&] {
      Turn();
      return ucp_request_check_status(closing) != UCS_INPROGRESS;
    }));
    ucp_request_free(closing);
  }

  Party* party_ = nullptr;
  const Incarnation self_ = Incarnation::Random();
  Incarnation target_{};
  std::unique_ptr<ucx::Worker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  bool by_socket_ = false;
};

class UcxPeer : public ::testing::Test {
 protected:
  explicit UcxPeer(Flavour flavour = UcxFlavour("UcxTcp", "tcp,self"))
      : flavour_(std::move(flavour)) {}

  void SetUp() override {
    const Flavour& flavour = flavour_;
    ASSERT_OK_AND_ASSIGN(party_, Party::Make(flavour, "party"));
    peer_ = PlayedPeer::Make(flavour);
    ASSERT_NE(peer_, nullptr);
  }

  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      party_->Turn();
      peer_->Turn();
      return done();
    });
  }

  void Idle(Duration time) {
    for (const Time end = Now() + time; Now() < end;) {
      party_->Turn();
      peer_->Turn();
    }
  }

  // The peer dials, with `path` as the id of its endpoint; the answer.
  ucx::Welcome Dial(uint64_t cookie, uint64_t path) {
    const size_t before = peer_->Count(FrameKind::kWelcome);
    peer_->SayHello(cookie, path);
    EXPECT_TRUE(Until([&] { return peer_->Count(FrameKind::kWelcome) > before; }));
    ucx::Welcome welcome;
    for (const Heard& frame : peer_->heard) {
      if (frame.head.kind != FrameKind::kWelcome || frame.head.cookie != cookie) continue;
      welcome = ucx::DecodeWelcome(std::as_bytes(std::span(frame.body))).value_or(welcome);
    }
    return welcome;
  }

  // And the party's agent believes it.
  ucx::Welcome DialAndProve(uint64_t cookie, uint64_t path) {
    const size_t before = party_->links.size();
    const ucx::Welcome welcome = Dial(cookie, path);
    EXPECT_TRUE(Until([&] { return party_->links.size() > before; }));
    party_->links.back()->endpoint->Authorize();
    return welcome;
  }

  const Flavour flavour_;
  std::unique_ptr<Party> party_;
  std::unique_ptr<PlayedPeer> peer_;
};

// Who has proved itself on a path that it has made anew says that the old one is over; the same
// path says nothing.
TEST_F(UcxPeer, OnlyANewPathEndsTheLinksOfTheOldOne) {
  peer_->ConnectTo(*party_);
  const ucx::Welcome first = DialAndProve(1, 100);
  const ucx::Welcome second = DialAndProve(2, 100);
  EXPECT_EQ(first.path, second.path);
  Idle(std::chrono::milliseconds(20));
  EXPECT_FALSE(party_->links[0]->down);
  DialAndProve(3, 101);
  ASSERT_EQ(party_->links.size(), 3u);
  ASSERT_TRUE(Until([&] { return party_->links[0]->down && party_->links[1]->down; }));
  EXPECT_TRUE(Fails(party_->links[0]->why, absl::StatusCode::kUnavailable, {"connected anew"}));
  EXPECT_FALSE(party_->links[2]->down);
}

// Anybody may say hello and name the worker of another agent.
TEST_F(UcxPeer, NothingEndsForWhoHasProvedNothing) {
  peer_->ConnectTo(*party_);
  DialAndProve(1, 100);
  for (uint64_t i = 0; i < 20; ++i) Dial(2 + i, 101 + i);
  Idle(std::chrono::milliseconds(20));
  EXPECT_FALSE(party_->links[0]->down) << party_->links[0]->why;
  // Nor does the process end the path that the hello names: one that does not exist.
  HostIdentity gone = party_->host();
  gone.pid = 0x7fffffff;
  peer_->host = gone;
  Dial(50, 150);
  Idle(std::chrono::milliseconds(20));
  EXPECT_FALSE(party_->links[0]->down) << party_->links[0]->why;
  EXPECT_FALSE(party_->links.back()->down) << party_->links.back()->why;
}

// A link between two others, "a" and the party, and the peer here who names a's worker as its own.
class UcxImpostor : public UcxPeer {
 protected:
  void SetUp() override {
    UcxPeer::SetUp();
    ASSERT_OK_AND_ASSIGN(a_, Party::Make(flavour_, "a"));
    ASSERT_OK_AND_ASSIGN(const ucx::Address address,
                         ucx::DecodeAddress(a_->backend().Describe().address));
    worker_ = address.place.substr(1);
    peer_->ConnectTo(*party_);
  }
  bool All(const std::function<bool()>& done) {
    return Until([&] {
      a_->Turn();
      return done();
    });
  }
  void Connect() {
    const size_t before = party_->links.size();
    ASSERT_OK_AND_ASSIGN(link_, a_->Connect(*party_));
    ASSERT_TRUE(All([&] { return link_->connected && party_->links.size() > before; }));
    party_->links.back()->endpoint->Authorize();
  }
  // a's link passes messages both ways.
  void ExpectItWorks() {
    TestLink& in = *party_->links.back();
    ASSERT_TRUE(link_->Send("there"));
    ASSERT_TRUE(in.Send("back"));
    EXPECT_TRUE(All([&] { return !in.messages.empty() && !link_->messages.empty(); }));
    EXPECT_FALSE(in.down) << in.why;
    EXPECT_FALSE(link_->down) << link_->why;
    in.messages.clear();
    link_->messages.clear();
  }
  void Impersonate(uint64_t path) {
    const size_t before = party_->links.size();
    peer_->SayHello(path, path, worker_);
    ASSERT_TRUE(All([&] { return party_->links.size() > before; }));
    party_->links.erase(party_->links.end() - 1);  // nothing proves it
  }

  std::unique_ptr<Party> a_;
  std::string worker_;
  TestLink* link_ = nullptr;
};

TEST_F(UcxImpostor, EndsNoLinkOfTheWorkerThatItNames) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_NO_FATAL_FAILURE(Impersonate(1000 + i));
    ASSERT_NO_FATAL_FAILURE(ExpectItWorks());
  }
  EXPECT_EQ(a_->links.size(), 1u);
}

// The party opens a path to the worker before its owner says anything.
TEST_F(UcxImpostor, WhoComesFirstHindersNobody) {
  ASSERT_NO_FATAL_FAILURE(Impersonate(1000));
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(ExpectItWorks());
}

// UCX joins only ends of one setting. Expect that the false one is neither believed nor answered.
TEST_F(UcxImpostor, WhoSaysThatTheWorkerReportsNoFailuresHindersNobody) {
  peer_->SayHello(1000, 1000, worker_, /*reports_failure=*/false);
  for (const Time end = Now() + std::chrono::milliseconds(50); Now() < end;) {
    All([] { return true; });
  }
  EXPECT_TRUE(party_->links.empty());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(ExpectItWorks());
}

// The old path works no more, and only the party does not know it yet.
TEST_F(UcxPeer, ANewPathIsAnsweredAgainWhenTheOldOneHasFailed) {
  peer_->ConnectTo(*party_);
  DialAndProve(1, 100);
  const uint64_t old = Dial(2, 101).path;
  const size_t welcomes = peer_->Count(FrameKind::kWelcome);
  peer_->ConnectTo(*party_);  // closes what the welcome came over
  ASSERT_TRUE(Until([&] { return peer_->Count(FrameKind::kWelcome) > welcomes; }));
  EXPECT_TRUE(party_->links[0]->down);
  EXPECT_FALSE(party_->links[1]->down) << party_->links[1]->why;
  const auto welcome = ucx::DecodeWelcome(std::as_bytes(std::span(peer_->heard.back().body)))
                           .value_or(ucx::Welcome{});
  EXPECT_EQ(peer_->heard.back().head.cookie, 2u);
  EXPECT_NE(welcome.path, old);
  EXPECT_EQ(peer_->heard.back().head.order, 1u);
  // Once: the new path leads to whoever the hello meant.
  peer_->ConnectTo(*party_);
  EXPECT_TRUE(Until([&] { return party_->links[1]->down; }));
}

// Else two agents that dial each other would take one another's new path for a sign of the loss of
// their own, for ever.
TEST_F(UcxPeer, TheWelcomeTellsThePathOfWhoGaveIt) {
  ASSERT_OK_AND_ASSIGN(auto endpoint, party_->backend().Connect(peer_->Address(), party_->host()));
  party_->links.push_back(std::make_unique<TestLink>());
  TestLink& link = *party_->links.back();
  link.endpoint = std::move(endpoint);
  ASSERT_TRUE(Until([&] { return peer_->Count(FrameKind::kHello) > 0; }));
  ASSERT_OK_AND_ASSIGN(const ucx::Hello hello,
                       ucx::DecodeHello(std::as_bytes(std::span(peer_->heard.front().body))));
  peer_->ConnectTo(*party_);
  peer_->Say({.kind = FrameKind::kWelcome, .cookie = hello.cookie, .order = 1},
             Encode(ucx::Welcome{.cookie = 5, .path = 100}));
  // The path that the welcome came by: nothing has ended.
  EXPECT_EQ(DialAndProve(6, 100).path, hello.path);
  Idle(std::chrono::milliseconds(20));
  EXPECT_FALSE(link.down);
  // Another one: it has.
  DialAndProve(7, 101);
  EXPECT_TRUE(Until([&] { return link.down; }));
}

TEST_F(UcxPeer, TheOldestWithoutAProofMakesSpace) {
  peer_->ConnectTo(*party_);
  DialAndProve(1, 100);
  const size_t most = ucx::UcxBackend::MaxUnproved();
  for (uint64_t i = 0; i < most; ++i) Dial(2 + i, 100);
  EXPECT_FALSE(party_->links[1]->down);
  Dial(2 + most, 100);
  EXPECT_TRUE(Until([&] { return party_->links[1]->down; }));
  EXPECT_TRUE(Fails(party_->links[1]->why, absl::StatusCode::kResourceExhausted, {"at once"}));
  EXPECT_FALSE(party_->links[0]->down);
  EXPECT_FALSE(party_->links[2]->down);
}

TEST_F(UcxPeer, WhoHasProvedItselfMakesNoSpace) {
  peer_->ConnectTo(*party_);
  const size_t most = ucx::UcxBackend::kMaxAccepted;
  for (uint64_t i = 0; i + 1 < most; ++i) DialAndProve(1 + i, 100);
  // The one that has proved nothing goes.
  Dial(most, 100);
  DialAndProve(most + 1, 100);
  EXPECT_TRUE(Until([&] { return party_->links[most - 1]->down; }));
  peer_->SayHello(most + 2, 100);
  EXPECT_TRUE(Until([&] {
    return std::ranges::any_of(peer_->heard, [&](const Heard& frame) {
      return frame.head.kind == FrameKind::kBye && frame.head.cookie == most + 2 &&
             frame.body.find("as many connections") != std::string::npos;
    });
  }));
  for (size_t i = 0; i < party_->links.size(); ++i) {
    EXPECT_EQ(party_->links[i]->down, i == most - 1) << i;
  }
}

// What comes early is kept, so there is a bound on it. 64 KiB are a part of a message of those who
// are authorised.
TEST_F(UcxPeer, LittleIsKeptOfWhoHasProvedNothing) {
  peer_->ConnectTo(*party_);
  const std::string large(2 * kMaxFirstMessageBytes, 'x');
  const ucx::Welcome proved = DialAndProve(1, 100);
  peer_->Say({.kind = FrameKind::kMessage, .cookie = proved.cookie, .order = 2}, large);
  const ucx::Welcome stranger = Dial(2, 100);
  peer_->Say({.kind = FrameKind::kMessage, .cookie = stranger.cookie, .order = 2}, large);
  EXPECT_TRUE(Until([&] { return party_->links[1]->down; }));
  EXPECT_TRUE(Fails(party_->links[1]->why, absl::StatusCode::kInvalidArgument,
                    {"does not count its frames"}));
  EXPECT_FALSE(party_->links[0]->down);
}

// Connects to the worker whose address comes over the socket, and never takes what UCX answers.
KVXFER_CHILD(UcxConnectsAndTakesNoAnswer) {
  const int socket = std::atoi(arguments.back().c_str());
  std::array<char, 4096> theirs{};
  const ssize_t bytes = read(socket, theirs.data(), theirs.size());
  CHILD_EXPECT(bytes > 0);
  const std::unique_ptr<PlayedPeer> peer = PlayedPeer::Make(UcxFlavour("UcxTcp", "tcp,self"));
  CHILD_EXPECT(peer != nullptr);
  peer->ConnectTo({theirs.data(), static_cast<size_t>(bytes)});
  for (int i = 0; i < 100; ++i) {
    peer->Turn();
    usleep(1000);
  }
  const std::string mine = peer->Address();
  CHILD_EXPECT(write(socket, mine.data(), mine.size()) > 0);
  for (;;) pause();
}

// UCX (1.13) aborts the process here if it may wait for connections.
TEST_F(UcxPeer, ThatHadConnectedAndDiedIsDialledAndLost) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const OwnFd ours(sockets[0]);
  OwnFd childs(sockets[1]);
  ASSERT_OK_AND_ASSIGN(auto child,
                       ChildProcess::Start("UcxConnectsAndTakesNoAnswer", {}, childs.get()));
  childs.Reset();
  const std::string address = party_->backend().Describe().address;
  ASSERT_GT(write(ours.get(), address.data(), address.size()), 0);
  std::array<char, 4096> theirs{};
  const ssize_t bytes = read(ours.get(), theirs.data(), theirs.size());
  ASSERT_GT(bytes, 0);
  Idle(std::chrono::milliseconds(100));  // UCX answers; the child does not read it
  child.Signal(SIGKILL);
  ASSERT_TRUE(child.WaitExit(kAmple));
  party_->links.push_back(std::make_unique<TestLink>());
  TestLink& link = *party_->links.back();
  ASSERT_OK_AND_ASSIGN(link.endpoint,
                       party_->backend().Connect(
                           std::string(theirs.data(), static_cast<size_t>(bytes)), party_->host()));
  EXPECT_TRUE(Until([&] { return link.down; }));
}

class UcxSocketPeer : public UcxPeer {
 protected:
  UcxSocketPeer() : UcxPeer(UcxSocketFlavour()) {}
};

// Expect that it is refused, and that nothing ends.
TEST_F(UcxSocketPeer, AConnectionDoesNotChangeItsPath) {
  peer_->ConnectTo(*party_);
  DialAndProve(1, 100);
  Dial(2, 100);
  peer_->SayHello(3, 101);
  ASSERT_TRUE(Until([&] { return peer_->Count(FrameKind::kBye) > 0; }));
  Idle(std::chrono::milliseconds(20));
  EXPECT_EQ(party_->links.size(), 2u);
  EXPECT_FALSE(party_->links[0]->down || party_->links[1]->down);
  peer_->ConnectTo(*party_);
  EXPECT_NE(DialAndProve(4, 102).cookie, 0u);
}

// The peer reads more than may be on its way and acknowledges nothing, so that a part has to wait.
class UcxReader : public UcxPeer {
 protected:
  static constexpr size_t kBytes = 8 * 1024 * 1024;
  static constexpr uint64_t kCookie = 1;

  void SetUp() override {
    UcxPeer::SetUp();
    ASSERT_OK_AND_ASSIGN(region_, party_->Register(kBytes));
    peer_->ConnectTo(*party_);
    link_ = Dial(kCookie, 100).cookie;
    party_->links[0]->endpoint->Authorize();
    ASSERT_TRUE(Until([&] { return peer_->Count(FrameKind::kAuthorized) > 0; }));
    Read(0);
    ASSERT_TRUE(Until([&] { return peer_->Count(FrameKind::kReadData) > 0; }));
    Settle();
  }

  // The peer's next frame of the link.
  void Say(FrameHead head, const std::string& body = "") {
    head.cookie = link_;
    head.order = ++order_;
    peer_->Say(head, body);
  }

  // 1 MiB from `offset`: what one op has at most.
  void ReadMiB(uint64_t offset) {
    std::string body(ucx::kWireRunBytes, '\0');
    const ucx::WireRun piece{.address = region_->address() + offset,
                             .bytes = ucx::kMaxOpBytes,
                             .rkey = region_->local.rkey};
    Encode(piece, std::as_writable_bytes(std::span(body)).first<ucx::kWireRunBytes>());
    Say({.kind = FrameKind::kRead, .transfer = kTransfer, .number = ++reads_}, body);
  }

  void Read(uint64_t offset) {
    for (; offset < kBytes; offset += ucx::kMaxOpBytes) ReadMiB(offset);
  }

  // Nothing comes any more.
  void Settle() {
    size_t last = 0;
    do {
      last = peer_->heard.size();
      Idle(std::chrono::milliseconds(50));
    } while (peer_->heard.size() > last);
  }

  uint64_t Served() const {
    uint64_t bytes = 0;
    for (const Heard& frame : peer_->heard) {
      if (frame.head.kind == FrameKind::kReadData) bytes += frame.body.size();
    }
    return bytes;
  }

  // Acknowledges all that has come, until nothing more does.
  void TakeTheRest() {
    size_t before = 0;
    do {
      before = peer_->heard.size();
      Say({.kind = FrameKind::kCredit, .number = Credit()});
      Settle();
    } while (peer_->heard.size() > before);
  }

  TestRegion* region_ = nullptr;

 private:
  uint32_t Credit() const {
    uint64_t taken = 0;
    for (const Heard& frame : peer_->heard) {
      if (frame.head.kind != FrameKind::kReadData) continue;
      taken += ucx::ChargeOf(ucx::kFrameHeadBytes + frame.body.size());
    }
    return static_cast<uint32_t>(taken);
  }

  uint64_t link_ = 0;
  uint64_t order_ = 0;
  uint32_t reads_ = 0;
};

TEST_F(UcxReader, IsServedAsItAcknowledges) {
  EXPECT_LT(Served(), kBytes);
  TakeTheRest();
  EXPECT_EQ(Served(), kBytes);
  EXPECT_FALSE(party_->links[0]->down);
}

TEST_F(UcxReader, IsServedNothingOfWhatItFenced) {
  const uint64_t before = Served();
  Say({.kind = FrameKind::kFence, .transfer = kTransfer});
  TakeTheRest();
  EXPECT_EQ(Served(), before);
  EXPECT_FALSE(party_->links[0]->down);
}

// Expect that it loses its link, and is not kept in memory.
TEST_F(UcxReader, AsksForNoMorePiecesThanAnOpHas) {
  Say({.kind = FrameKind::kRead, .transfer = kTransfer, .number = 1000},
      std::string((ucx::kMaxOpPieces + 1) * ucx::kWireRunBytes, '\0'));
  ASSERT_TRUE(Until([&] { return party_->links[0]->down; }));
}

TEST_F(UcxReader, IsToldOfARegionThatWasClosed) {
  const uint64_t before = Served();
  region_->registration.reset();
  FillWith(region_->bytes(), std::byte{0xee});
  TakeTheRest();
  EXPECT_EQ(Served(), before);
  size_t voided = 0;
  for (const Heard& frame : peer_->heard) {
    if (frame.head.kind == FrameKind::kReadData && (frame.head.flags & ucx::kVoid) != 0) ++voided;
  }
  EXPECT_GT(voided, 0u);
  EXPECT_FALSE(party_->links[0]->down);
}

// Through shared memory, where what a peer does not take stays with the sender.
TEST(UcxSilentPeer, WhoTakesNothingIsNotSentEverMore) {
  const Flavour flavour = UcxFlavour("UcxPosix", "posix,self");
  ASSERT_OK_AND_ASSIGN(const auto party, Party::Make(flavour, "party"));
  ASSERT_OK_AND_ASSIGN(const auto silent, Party::Make(flavour, "silent"));
  constexpr int kMost = 20'000;
  int hellos = 0;
  for (; hellos < kMost; ++hellos) {
    auto endpoint = party->backend().Connect(silent->backend().Describe().address, silent->host());
    if (!endpoint.ok()) {
      EXPECT_TRUE(Fails(endpoint.status(), absl::StatusCode::kUnavailable, {"takes nothing"}));
      break;
    }
    endpoint->reset();
    party->Turn();
  }
  EXPECT_LT(hellos, kMost);
  // Once it takes what it was sent, it is sent more. (A worker that owes so much could not be
  // brought to rest either, and would be left behind.)
  TestLink* link = nullptr;
  EXPECT_TRUE(Eventually(kAmple, [&] {
    silent->Turn();
    party->Turn();
    if (link == nullptr) link = party->Connect(*silent).value_or(nullptr);
    return link != nullptr && link->connected;
  }));
}

}  // namespace
}  // namespace kvxfer::testing
