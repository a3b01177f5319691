// Text of peers, made fit for logs, errors and Python.
#include "src/core/base/text.h"

#include <gtest/gtest.h>

#include <string>

#include "kvxfer/types.h"
#include "src/core/base/strings.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

constexpr size_t kAll = 1000;

TEST(Text, PlainTextStaysAsItIs) {
  for (const char* text : {"", "decode-0", "größe", "日本語", "\xf0\x9f\x98\x80", "a \\ b"}) {
    EXPECT_TRUE(IsPrintable(text)) << text;
    EXPECT_EQ(Printable(text, kAll), text);
  }
}

TEST(Text, ControlCharactersAndWhatTurnsTextAroundAreEscaped) {
  EXPECT_EQ(Printable("a\nb\r\t\x1b[31m\x7f", kAll), "a\\x0ab\\x0d\\x09\\x1b[31m\\x7f");
  EXPECT_EQ(Printable(std::string("\0", 1), kAll), "\\x00");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m",
                      kAll),
            "\\xc2\\x9b31m");                                     // C1: CSI in one character
  EXPECT_EQ(Printable("\xe2\x80\xa8", kAll), "\\xe2\\x80\\xa8");  // line separator
  EXPECT_EQ(Printable("\xe2\x80\xae", kAll), "\\xe2\\x80\\xae");  // right-to-left override
}

TEST(Text, WhatIsNotUtf8IsEscaped) {
  for (const char* text : {"\xff", "\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe6\x97"}) {
    EXPECT_FALSE(IsPrintable(text));
    const std::string shown = Printable(text, kAll);
    EXPECT_EQ(shown.size(), 4 * std::string(text).size()) << shown;
    EXPECT_TRUE(IsPrintable(shown)) << shown;
  }
  EXPECT_EQ(Printable("ab\xff"
                      "cd",
                      kAll),
            "ab\\xffcd");
}

TEST(Text, EveryPairOfBytesBecomesPrintable) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      const std::string shown = Printable(text, kAll);
      ASSERT_TRUE(IsPrintable(shown)) << first << " " << second;
      ASSERT_EQ(shown == text, IsPrintable(text)) << first << " " << second;
    }
  }
}

TEST(Text, IsCutBetweenCharactersAndSaysHowMuchIsMissing) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdef", 4), "abcd... (2 more bytes)");
  EXPECT_EQ(Printable("abcü", 4), "abc... (2 more bytes)");
  EXPECT_EQ(Printable("abc\n", 6), "abc... (1 more bytes)");
}

TEST(Text, AddressesAndKeysAreLeftOut) {
  EXPECT_EQ(WithoutAddresses("4096 bytes at 0x7f1234567890 by rkey 0xDEADbeef (no)"),
            "4096 bytes at 0x*** by rkey 0x*** (no)");
  EXPECT_EQ(WithoutAddresses("vendor error 0x81, P_Key 0xffff"), "vendor error 0x81, P_Key 0xffff");
  EXPECT_EQ(WithoutAddresses("0x12345"), "0x***");
  EXPECT_EQ(WithoutAddresses("0x"), "0x");
  EXPECT_EQ(WithoutAddresses("0x0x123456"), "0x0x***");
  EXPECT_EQ(WithoutAddresses("0X7F1234567890, 0Xffff"), "0X***, 0Xffff");
}

TEST(Text, NamesArePrintableAndNotLong) {
  EXPECT_OK(CheckName("agent", "decode-0"));
  EXPECT_OK(CheckName("agent", std::string(kMaxNameBytes, 'n')));
  EXPECT_TRUE(testing::Fails(CheckName("agent", ""), absl::StatusCode::kInvalidArgument,
                             {"agent", "0 bytes"}));
  EXPECT_TRUE(testing::Fails(CheckName("agent", std::string(kMaxNameBytes + 1, 'n')),
                             absl::StatusCode::kInvalidArgument, {"256 bytes"}));
  EXPECT_TRUE(testing::Fails(CheckName("KV cache", "a\xff\n"), absl::StatusCode::kInvalidArgument,
                             {"KV cache", "a\\xff\\x0a", "UTF-8"}));
}

}  // namespace
}  // namespace kvxfer
