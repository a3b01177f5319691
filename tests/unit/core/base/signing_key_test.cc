#include "src/core/base/signing_key.h"

#include <gtest/gtest.h>
#include <openssl/err.h>

#include <string>

#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

template <size_t kBytes>
std::array<uint8_t, kBytes> FromHex(std::string_view text) {
  std::array<uint8_t, kBytes> bytes{};
  for (size_t i = 0; i < kBytes; ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16));
  }
  return bytes;
}

// RFC 8032, 7.1, tests 1 and 3.
struct Vector {
  const char* seed;
  const char* key;
  std::string message;
  const char* signature;
};
const Vector kVectors[] = {
    {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b"
     "46bd25bf5f0595bbe24655141438e7a100b"},
    {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "\xaf\x82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc"
     "6594a7c15e9716ed28dc027beceea1ec40a"}};

TEST(SigningKey, SignsAsTheRfcDoes) {
  for (const Vector& vector : kVectors) {
    ASSERT_OK_AND_ASSIGN(const SigningKey key, SigningKey::FromSeed(FromHex<32>(vector.seed)));
    EXPECT_EQ(key.public_key(), FromHex<32>(vector.key));
    ASSERT_OK_AND_ASSIGN(const Signature signature, key.Sign(vector.message));
    EXPECT_EQ(signature, FromHex<64>(vector.signature));
    EXPECT_TRUE(Verify(key.public_key(), vector.message, signature));
    EXPECT_FALSE(Verify(key.public_key(), vector.message + "x", signature));
  }
}

TEST(SigningKey, EachNewKeyIsAnother) {
  ASSERT_OK_AND_ASSIGN(const SigningKey a, SigningKey::Generate());
  ASSERT_OK_AND_ASSIGN(const SigningKey b, SigningKey::Generate());
  EXPECT_NE(a.public_key(), b.public_key());
  ASSERT_OK_AND_ASSIGN(const Signature signature, a.Sign("hello"));
  EXPECT_TRUE(Verify(a.public_key(), "hello", signature));
  EXPECT_FALSE(Verify(b.public_key(), "hello", signature));
}

TEST(SigningKey, WhatIsNoKeyVerifiesNothing) {
  PublicKey none{};
  none.fill(0xff);
  EXPECT_FALSE(Verify(none, "hello", Signature{}));
}

// `printf KEY | xxd -r -p | sha256sum`
TEST(SigningKey, AnIncarnationIsHalfOfTheHash) {
  ASSERT_OK_AND_ASSIGN(const Incarnation incarnation, IncarnationOf(FromHex<32>(kVectors[0].key)));
  EXPECT_EQ(incarnation.ToString(), "21fe31dfa154a261626bf854046fd227");
}

// With a key of small order the signature (R = the neutral point, s = 0) verifies for some
// messages, or for all. Expect that it never does, whatever the sign of x and however y is written.
TEST(SigningKey, KeysOfSmallOrderVerifyNothing) {
  const char* const keys[] = {"0000000000000000000000000000000000000000000000000000000000000000",
                              "0100000000000000000000000000000000000000000000000000000000000000",
                              "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
                              "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
                              "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                              "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
                              "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"};
  Signature forged{};
  forged[0] = 1;
  for (const char* hex : keys) {
    for (const uint8_t sign : {uint8_t{0}, uint8_t{0x80}}) {
      PublicKey key = FromHex<32>(hex);
      key.back() = static_cast<uint8_t>(key.back() | sign);
      for (int message = 0; message < 100; ++message) {
        EXPECT_FALSE(Verify(key, std::to_string(message), forged)) << hex << ", " << message;
      }
    }
  }
}

// Expect that the errors which the application has in libcrypto stay, and that none is added.
TEST(SigningKey, TheApplicationsErrorsStay) {
  ERR_clear_error();
  ERR_raise(ERR_LIB_USER, 7);
  EXPECT_FALSE(Verify(FromHex<32>(kVectors[0].key), "another", FromHex<64>(kVectors[0].signature)));
  EXPECT_FALSE(Verify(PublicKey{2}, "", Signature{}));
  EXPECT_EQ(ERR_GET_REASON(ERR_get_error()), 7);
  EXPECT_EQ(ERR_get_error(), 0u);
}

}  // namespace
}  // namespace kvxfer
