#include "src/core/protocol/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

using testing::Fails;
using State = Handshake::State;
constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

std::span<const std::byte> AsSpan(const std::string& message) {
  return std::as_bytes(std::span(message));
}

// An agent's key, the same in every run.
struct Owner {
  explicit Owner(uint8_t seed) : key(*SigningKey::FromSeed(Seed(seed))) {
    incarnation = *IncarnationOf(key.public_key());
  }
  static std::array<uint8_t, 32> Seed(uint8_t first) {
    std::array<uint8_t, 32> seed{};
    seed.fill(first);
    return seed;
  }
  Handshake::Side Side(uint8_t nonce, std::string backend = "tcp", std::string binding = "") const {
    Handshake::Side side{.key = &key,
                         .incarnation = incarnation,
                         .backend = std::move(backend),
                         .binding = std::move(binding)};
    side.nonce.fill(nonce);
    return side;
  }

  SigningKey key;
  Incarnation incarnation{};
};

class HandshakeTest : public ::testing::Test {
 protected:
  HelloFrame Hello() const {
    return {.initiator = prefill_.incarnation,
            .target = decode_.incarnation,
            .session = 77,
            .peer_session = 4,
            .name = "prefill-0"};
  }
  Handshake Dials(uint8_t nonce = 1) const {
    return Handshake::Dialling(prefill_.Side(nonce), 3, Hello(), 9);
  }
  Handshake Accepts(uint8_t nonce = 2) const { return Handshake::Accepting(decode_.Side(nonce)); }

  // The messages of one handshake between the two, in order.
  std::vector<std::string> Record(uint8_t dial_nonce = 1, uint8_t accept_nonce = 2) const {
    Handshake dials = Dials(dial_nonce);
    Handshake accepts = Accepts(accept_nonce);
    std::vector<std::string> said{dials.HelloMessage(), dials.KeyMessage()};
    EXPECT_OK(accepts.Take(AsSpan(said[0])));
    said.push_back(accepts.Take(AsSpan(said[1])).value_or(""));
    said.push_back(dials.Take(AsSpan(said[2])).value_or(""));
    return said;
  }

  // What a signature covers, as docs/wire-format.md says it.
  std::string Covered(uint8_t role, const std::string& hello, const KeyFrame& dialled,
                      const KeyFrame& accepted, const std::string& backend = "tcp") const {
    KeyFrame unsigned_key = accepted;
    unsigned_key.signature.clear();
    std::string all;
    const auto add = [&all](const std::string& part) {
      for (int shift = 0; shift < 32; shift += 8) {
        all.push_back(static_cast<char>(part.size() >> shift));
      }
      all += part;
    };
    add("kvxfer handshake, version 7");
    all.push_back(static_cast<char>(role));
    add(hello);
    add(Encode(dialled));
    add(Encode(unsigned_key));
    add(backend);
    add("");
    return all;
  }

  const Owner prefill_{10};
  const Owner decode_{20};
  const Owner stranger_{30};
};

template <typename Frame>
Frame BodyOf(const std::string& message) {
  return *Decode<Frame>(DecodeEnvelope(AsSpan(message))->body);
}

TEST_F(HandshakeTest, EachSideIsProvedToTheOther) {
  Handshake dials = Dials();
  Handshake accepts = Accepts();
  EXPECT_EQ(*accepts.Take(AsSpan(dials.HelloMessage())), "");
  EXPECT_EQ(accepts.state(), State::kHasHello);
  ASSERT_OK_AND_ASSIGN(const std::string key, accepts.Take(AsSpan(dials.KeyMessage())));
  EXPECT_EQ(accepts.state(), State::kAnswered);
  ASSERT_OK_AND_ASSIGN(const std::string proof, dials.Take(AsSpan(key)));
  EXPECT_EQ(dials.state(), State::kProved);
  EXPECT_EQ(*accepts.Take(AsSpan(proof)), "");
  EXPECT_EQ(accepts.state(), State::kProved);
  EXPECT_EQ(accepts.hello(), Hello());
  EXPECT_EQ(accepts.hello_ack(), 9u);
  EXPECT_EQ(accepts.version(), kMaxProtocolVersion);
}

TEST_F(HandshakeTest, TheKeyMayOvertakeTheHello) {
  Handshake dials = Dials();
  Handshake accepts = Accepts();
  EXPECT_EQ(*accepts.Take(AsSpan(dials.KeyMessage())), "");
  EXPECT_EQ(accepts.state(), State::kHasKey);
  ASSERT_OK_AND_ASSIGN(const std::string key, accepts.Take(AsSpan(dials.HelloMessage())));
  ASSERT_OK_AND_ASSIGN(const std::string proof, dials.Take(AsSpan(key)));
  EXPECT_OK(accepts.Take(AsSpan(proof)));
  EXPECT_EQ(accepts.state(), State::kProved);
}

// Every state with every type of frame: what the table does not have fails.
TEST_F(HandshakeTest, NothingElseComesAtAnyPoint) {
  const std::vector<std::string> said = Record();
  const auto dialled = [&](size_t) { return Dials(); };
  const auto fed = [&](const std::vector<size_t>& messages) {
    Handshake accepts = Accepts();
    for (const size_t message : messages) EXPECT_OK(accepts.Take(AsSpan(said[message])));
    return accepts;
  };
  // Which of the four messages are right, by their place in `said`.
  struct Point {
    State state;
    std::vector<size_t> fed;
    std::vector<size_t> right;
  };
  for (const Point& point : std::vector<Point>{{State::kOpen, {}, {0, 1}},
                                               {State::kHasHello, {0}, {1}},
                                               {State::kHasKey, {1}, {0}},
                                               {State::kAnswered, {0, 1}, {3}},
                                               {State::kProved, {0, 1, 3}, {}}}) {
    ASSERT_EQ(fed(point.fed).state(), point.state);
    for (size_t i = 0; i < said.size(); ++i) {
      Handshake accepts = fed(point.fed);
      const bool right = std::ranges::find(point.right, i) != point.right.end();
      EXPECT_EQ(accepts.Take(AsSpan(said[i])).ok(), right)
          << i << " in " << static_cast<int>(point.state);
      EXPECT_EQ(accepts.state() == State::kFailed, !right);
      if (right) continue;
      for (const std::string& message : said) EXPECT_FALSE(accepts.Take(AsSpan(message)).ok());
    }
    for (int type = 3; type < static_cast<int>(FrameType::kKey); ++type) {
      Handshake accepts = fed(point.fed);
      EXPECT_FALSE(accepts
                       .Take(AsSpan(EncodeMessage(FrameType{static_cast<uint8_t>(type)}, 0, 0,
                                                  std::string_view())))
                       .ok());
      EXPECT_EQ(accepts.state(), State::kFailed);
    }
  }
  for (const size_t i : {size_t{0}, size_t{1}, size_t{3}}) {
    Handshake dials = dialled(i);
    EXPECT_FALSE(dials.Take(AsSpan(said[i])).ok()) << i;
    EXPECT_FALSE(dials.Take(AsSpan(said[2])).ok()) << "after a failure";
  }
  Handshake dials = Dials();
  EXPECT_OK(dials.Take(AsSpan(said[2])));
  EXPECT_FALSE(dials.Take(AsSpan(said[2])).ok()) << "the key twice";
}

// Whatever one bit of a message becomes on the way, the side that accepts believes nothing; and the
// side that dials neither, unless it is its proof that is changed.
TEST_F(HandshakeTest, EveryBitCounts) {
  const std::vector<std::string> said = Record();
  for (size_t changed = 0; changed < said.size(); ++changed) {
    for (size_t bit = 0; bit < said[changed].size() * 8; ++bit) {
      Handshake dials = Dials();
      Handshake accepts = Accepts();
      const auto way = [&](size_t message, std::string text) {
        if (message == changed) text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
        return text;
      };
      (void)accepts.Take(AsSpan(way(0, dials.HelloMessage())));
      const auto key = accepts.Take(AsSpan(way(1, dials.KeyMessage())));
      if (key.ok() && !key->empty()) {
        const auto proof = dials.Take(AsSpan(way(2, *key)));
        if (proof.ok()) (void)accepts.Take(AsSpan(way(3, *proof)));
      }
      ASSERT_NE(accepts.state(), State::kProved) << "message " << changed << ", bit " << bit;
      ASSERT_EQ(dials.state() == State::kProved, changed == 3) << changed << ", bit " << bit;
    }
  }
}

TEST_F(HandshakeTest, EveryOtherLengthIsRefused) {
  const std::vector<std::string> said = Record();
  const auto refused = [&](size_t message, const std::string& text) {
    Handshake one = message == 2 ? Dials() : Accepts();
    if (message == 3) {
      EXPECT_OK(one.Take(AsSpan(said[0])));
      EXPECT_OK(one.Take(AsSpan(said[1])));
    }
    return !one.Take(AsSpan(text)).ok() && one.state() == State::kFailed;
  };
  for (size_t message = 0; message < said.size(); ++message) {
    for (size_t size = 0; size < said[message].size(); ++size) {
      ASSERT_TRUE(refused(message, said[message].substr(0, size))) << message << ", " << size;
    }
    ASSERT_TRUE(refused(message, said[message] + '\0')) << message;
  }
}

TEST_F(HandshakeTest, ALongHelloIsRefused) {
  HelloFrame hello = Hello();
  const size_t shortest = EncodeMessage(FrameType::kHello, 0, 0, hello).size() - hello.auth.size();
  hello.auth.resize(Handshake::kMaxMessageBytes - shortest);
  Handshake accepts = Accepts();
  EXPECT_OK(accepts.Take(AsSpan(EncodeMessage(FrameType::kHello, 0, 0, hello))));
  hello.auth.push_back(AuthMethod::kNone);
  accepts = Accepts();
  EXPECT_TRUE(Fails(accepts.Take(AsSpan(EncodeMessage(FrameType::kHello, 0, 0, hello))),
                    kInvalidArgument, {"4097 bytes before the proof"}));
}

TEST_F(HandshakeTest, ARecordedHandshakeProvesNothingLater) {
  const std::vector<std::string> said = Record();
  Handshake accepts = Accepts(5);
  EXPECT_OK(accepts.Take(AsSpan(said[0])));
  EXPECT_OK(accepts.Take(AsSpan(said[1])));
  EXPECT_TRUE(Fails(accepts.Take(AsSpan(said[3])), kUnauthenticated, {"does not prove"}));
  EXPECT_EQ(accepts.refusal(), RefuseReason::kNotProved);

  Handshake dials = Dials(6);
  EXPECT_TRUE(Fails(dials.Take(AsSpan(said[2])), kUnauthenticated, {"does not prove"}));
}

// The stranger has what a real agent signed on another connection, and says the rest itself.
TEST_F(HandshakeTest, AProofOverAnOldNonceProvesNothing) {
  const std::vector<std::string> old = Record(1, 2);
  Handshake accepts = Accepts(3);
  EXPECT_OK(accepts.Take(AsSpan(old[0])));
  ASSERT_OK_AND_ASSIGN(const std::string key, accepts.Take(AsSpan(old[1])));
  KeyFrame accepted = BodyOf<KeyFrame>(key);
  const auto proof = [&] {
    const std::string covered = Covered(1, old[0], BodyOf<KeyFrame>(old[1]), accepted);
    return EncodeMessage(FrameType::kProof, 0, 0,
                         ProofFrame{.signature = *prefill_.key.Sign(covered)});
  };
  Handshake again = accepts;
  EXPECT_OK(again.Take(AsSpan(proof())));
  accepted.nonce.fill(2);
  EXPECT_TRUE(Fails(accepts.Take(AsSpan(proof())), kUnauthenticated));
}

TEST_F(HandshakeTest, ASignatureStandsForOneRole) {
  const std::vector<std::string> said = Record();
  const KeyFrame dialled = BodyOf<KeyFrame>(said[1]);
  const KeyFrame accepted = BodyOf<KeyFrame>(said[2]);
  // The key, with a signature over the same bytes as the side that dials signs.
  KeyFrame swapped = accepted;
  Signature signature = *decode_.key.Sign(Covered(1, said[0], dialled, accepted));
  swapped.signature.assign(signature.begin(), signature.end());
  Handshake dials = Dials();
  EXPECT_TRUE(
      Fails(dials.Take(AsSpan(EncodeMessage(FrameType::kKey, 0, 0, swapped))), kUnauthenticated));
  signature = *decode_.key.Sign(Covered(2, said[0], dialled, accepted));
  EXPECT_EQ(std::string(signature.begin(), signature.end()), accepted.signature);

  const auto proved = [&](uint8_t role) {
    Handshake accepts = Accepts();
    EXPECT_OK(accepts.Take(AsSpan(said[0])));
    EXPECT_OK(accepts.Take(AsSpan(said[1])));
    const ProofFrame proof{.signature =
                               *prefill_.key.Sign(Covered(role, said[0], dialled, accepted))};
    return accepts.Take(AsSpan(EncodeMessage(FrameType::kProof, 0, 0, proof))).ok();
  };
  EXPECT_TRUE(proved(1));
  EXPECT_FALSE(proved(2));
}

// What a stranger can do with the incarnation that metadata publishes, and with the public key that
// every connection shows.
TEST_F(HandshakeTest, NobodyDialsAsAnother) {
  Handshake accepts = Accepts();
  Handshake claims = Handshake::Dialling(stranger_.Side(1), 3, Hello(), 9);
  EXPECT_OK(accepts.Take(AsSpan(claims.HelloMessage())));
  EXPECT_TRUE(Fails(accepts.Take(AsSpan(claims.KeyMessage())), kUnauthenticated,
                    {"says that it is incarnation"}));
  EXPECT_EQ(accepts.refusal(), RefuseReason::kNotProved);

  // With the key of the one that it claims to be, and its own signature.
  accepts = Accepts();
  KeyFrame key = BodyOf<KeyFrame>(claims.KeyMessage());
  key.key = prefill_.key.public_key();
  EXPECT_OK(accepts.Take(AsSpan(claims.HelloMessage())));
  ASSERT_OK_AND_ASSIGN(const std::string answer,
                       accepts.Take(AsSpan(EncodeMessage(FrameType::kKey, 0, 0, key))));
  const std::string covered = Covered(1, claims.HelloMessage(), key, BodyOf<KeyFrame>(answer));
  const ProofFrame proof{.signature = *stranger_.key.Sign(covered)};
  EXPECT_TRUE(Fails(accepts.Take(AsSpan(EncodeMessage(FrameType::kProof, 0, 0, proof))),
                    kUnauthenticated, {"does not prove"}));
}

TEST_F(HandshakeTest, NobodyAnswersAsAnother) {
  Handshake dials = Dials();
  Handshake::Side side = stranger_.Side(2);
  side.incarnation = decode_.incarnation;  // it says so
  Handshake claims = Handshake::Accepting(side);
  EXPECT_OK(claims.Take(AsSpan(dials.HelloMessage())));
  ASSERT_OK_AND_ASSIGN(const std::string answer, claims.Take(AsSpan(dials.KeyMessage())));
  EXPECT_TRUE(Fails(dials.Take(AsSpan(answer)), kUnauthenticated, {"says that it is incarnation"}));

  dials = Dials();
  KeyFrame key = BodyOf<KeyFrame>(answer);
  key.key = decode_.key.public_key();
  const Signature signature = *stranger_.key.Sign(
      Covered(2, dials.HelloMessage(), BodyOf<KeyFrame>(dials.KeyMessage()), key));
  key.signature.assign(signature.begin(), signature.end());
  EXPECT_TRUE(Fails(dials.Take(AsSpan(EncodeMessage(FrameType::kKey, 0, 0, key))), kUnauthenticated,
                    {"does not prove"}));
}

TEST_F(HandshakeTest, AHelloThatDoesNotFitIsRefusedByName) {
  const auto refused = [&](const HelloFrame& hello, RefuseReason reason, const char* word) {
    Handshake accepts = Accepts();
    const auto answer = accepts.Take(AsSpan(EncodeMessage(FrameType::kHello, 0, 0, hello)));
    EXPECT_TRUE(Fails(answer, absl::StatusCode::kFailedPrecondition, {word}));
    EXPECT_EQ(accepts.refusal(), reason);
  };
  HelloFrame hello = Hello();
  hello.min_version = 1;
  hello.max_version = kMinProtocolVersion - 1;
  refused(hello, RefuseReason::kVersion, "one side speaks 1 to 6, the other 7 to 7");
  hello = Hello();
  hello.target = stranger_.incarnation;
  refused(hello, RefuseReason::kIncarnation, "this is incarnation");
  hello = Hello();
  hello.auth = {AuthMethod{7}};
  refused(hello, RefuseReason::kAuth, "authentication");
  hello = Hello();
  hello.initiator = decode_.incarnation;
  refused(hello, RefuseReason::kNotProved, "itself");
  hello = Hello();
  hello.auth = {AuthMethod{7}, AuthMethod::kNone};
  Handshake accepts = Accepts();
  EXPECT_OK(accepts.Take(AsSpan(EncodeMessage(FrameType::kHello, 0, 0, hello))));
}

// Expect that each end must mean the same backend, and the same connection of it.
TEST_F(HandshakeTest, BackendAndBindingAreTheSameAtBothEnds) {
  const auto proved = [&](const Handshake::Side& dialling, const Handshake::Side& accepting) {
    Handshake dials = Handshake::Dialling(dialling, 3, Hello(), 9);
    Handshake accepts = Handshake::Accepting(accepting);
    EXPECT_OK(accepts.Take(AsSpan(dials.HelloMessage())));
    return dials.Take(AsSpan(*accepts.Take(AsSpan(dials.KeyMessage())))).ok();
  };
  EXPECT_TRUE(proved(prefill_.Side(1, "shm", "pids"), decode_.Side(2, "shm", "pids")));
  EXPECT_FALSE(proved(prefill_.Side(1, "tcp"), decode_.Side(2, "verbs")));
  EXPECT_FALSE(proved(prefill_.Side(1, "shm", "pids"), decode_.Side(2, "shm", "others")));
  EXPECT_FALSE(proved(prefill_.Side(1, "shm", "pids"), decode_.Side(2, "shm")));
  // Each part has its length.
  EXPECT_FALSE(proved(prefill_.Side(1, "shm", "pids"), decode_.Side(2, "shmp", "ids")));
}

TEST_F(HandshakeTest, AKeyIsOfTheSideThatSendsIt) {
  const std::vector<std::string> said = Record();
  const auto with = [](KeyFrame key, uint64_t link, std::string signature) {
    key.link = link;
    key.signature = std::move(signature);
    return EncodeMessage(FrameType::kKey, 0, 0, key);
  };
  const KeyFrame dialled = BodyOf<KeyFrame>(said[1]);
  for (const std::string& key :
       {with(dialled, 0, ""), with(dialled, 3, std::string(64, 'x')), said[2]}) {
    Handshake accepts = Accepts();
    EXPECT_OK(accepts.Take(AsSpan(said[0])));
    EXPECT_TRUE(Fails(accepts.Take(AsSpan(key)), kInvalidArgument, {"key"}));
  }
  KeyFrame accepted = BodyOf<KeyFrame>(said[2]);
  for (const std::string& key : {with(accepted, 3, accepted.signature), with(accepted, 0, "")}) {
    Handshake dials = Dials();
    EXPECT_TRUE(Fails(dials.Take(AsSpan(key)), kInvalidArgument, {"key"}));
  }
}

TEST_F(HandshakeTest, NothingIsNumberedBeforeTheProof) {
  const auto numbered = [](const std::string& message, uint64_t sequence, uint64_t ack) {
    const Envelope envelope = *DecodeEnvelope(AsSpan(message));
    const std::string body(reinterpret_cast<const char*>(envelope.body.data()),
                           envelope.body.size());
    return EncodeMessage(envelope.type, sequence, ack, body);
  };
  const std::vector<std::string> said = Record();
  for (const std::string& first :
       {numbered(said[0], 1, 9), numbered(said[1], 1, 0), numbered(said[1], 0, 1)}) {
    Handshake accepts = Accepts();
    EXPECT_TRUE(Fails(accepts.Take(AsSpan(first)), kInvalidArgument, {"numbered"}));
  }
  for (const auto& [sequence, ack] : std::vector<std::pair<uint64_t, uint64_t>>{{1, 0}, {0, 1}}) {
    Handshake accepts = Accepts();
    EXPECT_OK(accepts.Take(AsSpan(said[0])));
    EXPECT_OK(accepts.Take(AsSpan(said[1])));
    EXPECT_FALSE(accepts.Take(AsSpan(numbered(said[3], sequence, ack))).ok());
    Handshake dials = Dials();
    EXPECT_FALSE(dials.Take(AsSpan(numbered(said[2], sequence, ack))).ok());
  }
}

}  // namespace
}  // namespace kvxfer
