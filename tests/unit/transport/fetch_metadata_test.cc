// What FetchMetadata makes of whoever answers, or does not. Agents that do are in
// tests/conformance/agent_metadata_test.cc.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/metadata.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/socket.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using net::Fd;
using net::Welcome;
using net::WelcomeCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kAWhile = seconds(60);  // nobody waits for it

std::string SomeMetadata() {
  return EncodeMetadata({.name = "decode-0",
                         .incarnation = Incarnation::Random(),
                         .min_version = kMinProtocolVersion,
                         .max_version = kMaxProtocolVersion});
}

std::string Encoded(const Welcome& welcome) {
  std::string bytes(net::kWelcomeBytes, '\0');
  net::Encode(welcome, std::as_writable_bytes(std::span(bytes)).first<net::kWelcomeBytes>());
  return bytes;
}

// Says to each connection what `script` makes of it, one after the other, and then closes it.
class Server {
 public:
  using Script = std::function<void(Fd& fd, int number)>;

  explicit Server(Script script, const char* at = "127.0.0.1:0") : script_(std::move(script)) {
    auto where = net::Resolve(at, 0, net::Names::kNumericOnly);
    auto made = net::Listen(where->front());
    EXPECT_OK(made);
    listener_ = *std::move(made);
    if (script_) thread_ = std::thread([this] { Run(); });
  }
  ~Server() {
    stop_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  std::string address() const { return net::LocalAddress(listener_.get()).ToString(); }
  int connections() const { return connections_; }
  bool stopping() const { return stop_; }

 private:
  void Run() {
    while (!stop_) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.valid()) {
        script_(fd, ++connections_);
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  }

  const Script script_;
  Fd listener_;
  std::atomic<bool> stop_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// Reads the question, which must be one.
bool Asked(const Fd& fd) {
  std::array<std::byte, net::kPreambleBytes> bytes;
  if (::recv(fd.get(), bytes.data(), bytes.size(), MSG_WAITALL) != ssize_t{net::kPreambleBytes}) {
    return false;
  }
  const auto preamble = net::DecodePreamble(bytes);
  return preamble.ok() && preamble->service == net::Service::kMetadata;
}

void Say(const Fd& fd, const std::string& bytes) {
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Asks, says that and closes.
Server::Script Answers(std::string bytes) {
  return [bytes = std::move(bytes)](Fd& fd, int) {
    EXPECT_TRUE(Asked(fd));
    Say(fd, bytes);
  };
}

TEST(FetchMetadata, BringsWhatWasSaid) {
  const std::string metadata = SomeMetadata();
  const Server server(Answers(Encoded({.bytes = metadata.size()}) + metadata));
  ASSERT_OK_AND_ASSIGN(const std::string got, FetchMetadata(server.address(), kAWhile));
  EXPECT_EQ(got, metadata);
}

TEST(FetchMetadata, OverIpv6AndByName) {
  const std::string metadata = SomeMetadata();
  const auto answer = Answers(Encoded({.bytes = metadata.size()}) + metadata);
  if (net::Listen(net::Resolve("[::1]:0", 0, net::Names::kNumericOnly)->front()).ok()) {
    const Server server(answer, "[::1]:0");
    EXPECT_TRUE(server.address().starts_with("[::1]:"));
    EXPECT_OK(FetchMetadata(server.address(), kAWhile));
  }
  // Of a name with two addresses, one of which refuses.
  const Server server(answer);
  const std::string port = server.address().substr(server.address().rfind(':'));
  EXPECT_OK(FetchMetadata("localhost" + port, kAWhile));
}

TEST(FetchMetadata, InDribs) {
  const std::string metadata = SomeMetadata();
  const Server server([&](Fd& fd, int) {
    EXPECT_TRUE(Asked(fd));
    net::SetNoDelay(fd.get());
    for (const char c : Encoded({.bytes = metadata.size()}) + metadata) Say(fd, std::string(1, c));
  });
  ASSERT_OK_AND_ASSIGN(const std::string got, FetchMetadata(server.address(), kAWhile));
  EXPECT_EQ(got, metadata);
}

TEST(FetchMetadata, NobodyListens) {
  std::string address;
  {
    const Server server(nullptr);
    address = server.address();
  }
  EXPECT_TRUE(Fails(FetchMetadata(address, kAWhile), StatusCode::kUnavailable,
                    {address.c_str(), "errno 111", "is the agent running"}));
}

TEST(FetchMetadata, ABadAddress) {
  for (const char* bad : {"", ":", ":7471", "[::1", "127.0.0.1:99999", "127.0.0.1:x", "a b:1"}) {
    EXPECT_TRUE(Fails(FetchMetadata(bad, kAWhile), StatusCode::kInvalidArgument)) << bad;
  }
  for (const char* nobody : {"127.0.0.1:0", "0.0.0.0:7471", "[::]:7471"}) {
    EXPECT_TRUE(Fails(FetchMetadata(nobody, kAWhile), StatusCode::kInvalidArgument,
                      {nobody, "cannot be connected to"}));
  }
}

// Not longer than told, and not much shorter.
void ExpectLate(const std::string& address, const char* word) {
  constexpr Duration kTimeout = milliseconds(300);
  const Time start = Now();
  const auto got = FetchMetadata(address, kTimeout);
  const Duration took = Now() - start;
  EXPECT_TRUE(Fails(got, StatusCode::kDeadlineExceeded, {address.c_str(), word, "300 ms"}));
  EXPECT_GE(took, kTimeout);
  EXPECT_LT(took, kTimeout + Bound(milliseconds(400)));
}

TEST(FetchMetadata, AListenerThatNeverAccepts) {
  const Server server(nullptr);
  ExpectLate(server.address(), "connected, but 0 of 32 bytes");
}

TEST(FetchMetadata, AListenerWithNoRoomForMore) {
  auto where = net::Resolve("127.0.0.1:0", 0, net::Names::kNumericOnly);
  const Fd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(full.get(), where->front().get(), where->front().length), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  const net::SocketAddress at = net::LocalAddress(full.get());
  std::vector<Fd> waiting;
  for (int i = 0; i < 4; ++i) {
    auto one = net::StartConnect(at);
    ASSERT_OK(one);
    waiting.push_back(*std::move(one));
  }
  std::this_thread::sleep_for(milliseconds(20));
  ExpectLate(at.ToString(), "no connection");
}

TEST(FetchMetadata, AServerThatSaysNothing) {
  std::vector<Fd> kept;
  const Server server([&](Fd& fd, int) { kept.push_back(std::move(fd)); });
  ExpectLate(server.address(), "connected, but 0 of 32 bytes");
}

TEST(FetchMetadata, AServerThatStopsHalfway) {
  std::vector<Fd> kept;
  const Server server([&](Fd& fd, int) {
    Say(fd, Encoded({.bytes = 100}) + "some");
    kept.push_back(std::move(fd));
  });
  ExpectLate(server.address(), "connected, but 36 of 132 bytes");
}

TEST(FetchMetadata, AServerThatNeverEnds) {
  const Server* running = nullptr;
  const Server server([&](Fd& fd, int) {
    Say(fd, Encoded({.bytes = kMaxMetadataBytes}));
    net::SetNoDelay(fd.get());
    while (!running->stopping() && ::send(fd.get(), "x", 1, MSG_NOSIGNAL) == 1) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  running = &server;
  ExpectLate(server.address(), "bytes came within");
}

TEST(FetchMetadata, NoTimeAtAll) {
  const Server server(nullptr);
  for (const Duration none : {Duration(0), Duration(-seconds(1)), Duration::min()}) {
    EXPECT_TRUE(Fails(FetchMetadata(server.address(), none), StatusCode::kDeadlineExceeded));
  }
}

TEST(FetchMetadata, TimeWithoutEnd) {
  const std::string metadata = SomeMetadata();
  const Server server(Answers(Encoded({.bytes = metadata.size()}) + metadata));
  EXPECT_OK(FetchMetadata(server.address(), Duration::max()));
}

TEST(FetchMetadata, WhoIsNoAgent) {
  for (const std::string garbage :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-", "KVXPetc.", "\x01\x02\x03\x04"}) {
    std::vector<Fd> kept;
    const Server server([&](Fd& fd, int) {
      Say(fd, garbage);
      kept.push_back(std::move(fd));  // and waits, as such programs do
    });
    EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), StatusCode::kInternal,
                      {server.address().c_str(), "no kvxfer agent"}));
  }
  const Server server([](Fd& fd, int) { Say(fd, "HTTP"); });
  EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), StatusCode::kInternal, {"\"HTTP"}));
}

TEST(FetchMetadata, WhoClosesWithoutAWord) {
  const Server server([](Fd& fd, int) { EXPECT_TRUE(Asked(fd)); });
  EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), StatusCode::kUnavailable,
                    {"without an answer", "earlier kvxfer"}));
  const Server resets([](Fd&, int) {});
  EXPECT_TRUE(Fails(FetchMetadata(resets.address(), kAWhile), StatusCode::kUnavailable));
}

TEST(FetchMetadata, AnAnswerThatIsCutShort) {
  const std::string whole = Encoded({.bytes = SomeMetadata().size()}) + SomeMetadata();
  for (const size_t bytes : {size_t{1}, size_t{4}, size_t{31}, size_t{32}, whole.size() - 1}) {
    const Server server(Answers(whole.substr(0, bytes)));
    EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), StatusCode::kUnavailable,
                      {"was closed after"}))
        << bytes;
  }
}

TEST(FetchMetadata, AnAnswerThatIsDamaged) {
  const std::string metadata = SomeMetadata();
  for (size_t byte = 0; byte < metadata.size(); ++byte) {
    std::string damaged = metadata;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x20);
    const Server server(Answers(Encoded({.bytes = damaged.size()}) + damaged));
    const auto got = FetchMetadata(server.address(), kAWhile);
    // Bytes 4 to 7 are the version of the envelope.
    const bool version = byte >= 4 && byte < 8;
    EXPECT_TRUE(Fails(got, version ? StatusCode::kFailedPrecondition : StatusCode::kInternal))
        << byte;
  }
  for (const uint64_t length : {uint64_t{0}, uint64_t{19}, metadata.size() - 1,
                                uint64_t{kMaxMetadataBytes} + 1, UINT64_MAX}) {
    const Server server(Answers(Encoded({.bytes = length}) + metadata));
    EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), StatusCode::kInternal)) << length;
  }
}

TEST(FetchMetadata, EachRefusalIsExplained) {
  struct Case {
    Welcome welcome;
    StatusCode code;
    const char* word;
  };
  const Case cases[] = {
      {{.code = WelcomeCode::kNotServed}, StatusCode::kFailedPrecondition, "`serve_metadata`"},
      {{.code = WelcomeCode::kWrongIncarnation}, StatusCode::kFailedPrecondition, "listen_address"},
      {{.version = 9, .code = WelcomeCode::kWrongVersion},
       StatusCode::kFailedPrecondition,
       "speaks version 9"},
      {{.version = 9, .bytes = 5}, StatusCode::kFailedPrecondition, "speaks version 9"},
      {{.code = WelcomeCode::kClosing}, StatusCode::kUnavailable, "closing"},
      {{.code = WelcomeCode{77}}, StatusCode::kInternal, "code 77"},
  };
  for (const Case& one : cases) {
    const Server server(Answers(Encoded(one.welcome)));
    EXPECT_TRUE(Fails(FetchMetadata(server.address(), kAWhile), one.code,
                      {server.address().c_str(), one.word}));
  }
}

TEST(FetchMetadata, AsksAgainWhoIsBusy) {
  const std::string metadata = SomeMetadata();
  const Server server([&](Fd& fd, int number) {
    EXPECT_TRUE(Asked(fd));
    Say(fd, number < 4 ? Encoded({.code = WelcomeCode::kBusy})
                       : Encoded({.bytes = metadata.size()}) + metadata);
  });
  ASSERT_OK_AND_ASSIGN(const std::string got, FetchMetadata(server.address(), kAWhile));
  EXPECT_EQ(got, metadata);
  EXPECT_EQ(server.connections(), 4);
}

TEST(FetchMetadata, WhoIsBusyForGood) {
  const Server server(Answers(Encoded({.code = WelcomeCode::kBusy})));
  const Time start = Now();
  EXPECT_TRUE(Fails(FetchMetadata(server.address(), milliseconds(200)), StatusCode::kUnavailable,
                    {"too many others"}));
  EXPECT_LT(Now() - start, Bound(milliseconds(600)));
}

TEST(FetchMetadata, IsGivenUpWhenTheCallerSaysSo) {
  const Server server(nullptr);
  int asked = 0;
  const auto got = FetchMetadata(server.address(), kAWhile, [&asked] { return ++asked < 4; });
  EXPECT_TRUE(Fails(got, StatusCode::kCancelled, {server.address().c_str()}));
  EXPECT_EQ(asked, 4);
}

TEST(FetchMetadata, WithoutWaiting) {
  const std::string metadata = SomeMetadata();
  std::atomic<bool> answer{false};
  const Server server([&](Fd& fd, int) {
    EXPECT_TRUE(Asked(fd));
    EXPECT_TRUE(Eventually(kAmple, [&] { return answer.load(); }));
    Say(fd, Encoded({.bytes = metadata.size()}) + metadata);
  });
  // Several at once, of a text that is gone by then.
  std::vector<std::future<absl::StatusOr<std::string>>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(FetchMetadataAsync(std::string(server.address()), kAWhile));
    EXPECT_EQ(all.back().wait_for(milliseconds(0)), std::future_status::timeout);
  }
  answer = true;
  for (auto& each : all) {
    const absl::StatusOr<std::string> got = each.get();
    ASSERT_OK(got);
    EXPECT_EQ(*got, metadata);
  }
  EXPECT_TRUE(Fails(FetchMetadataAsync("nowhere:x", kAWhile).get(), StatusCode::kInvalidArgument));
}

TEST(FetchMetadata, WithoutWaitingIsGivenUpWhenTheCallerSaysSo) {
  const Server server(nullptr);
  const auto asked = std::make_shared<std::atomic<int>>(0);
  auto got = FetchMetadataAsync(server.address(), kAWhile, [asked] { return ++*asked < 3; });
  EXPECT_TRUE(Fails(got.get(), StatusCode::kCancelled, {server.address().c_str()}));
  // Dropped, the future does not wait for the fetch, which ends by itself.
  const auto stop = std::make_shared<std::atomic<bool>>(false);
  (void)FetchMetadataAsync(server.address(), kAWhile, [stop] { return !*stop; });
  EXPECT_GT(stop.use_count(), 1);
  *stop = true;
  EXPECT_TRUE(Eventually(kAmple, [&] { return stop.use_count() == 1; }));
}

}  // namespace
}  // namespace kvxfer::testing
