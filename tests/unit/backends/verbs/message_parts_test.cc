#include "src/backends/verbs/message_parts.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "src/transport/hello.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using verbs::DecodePartHead;
using verbs::Encode;
using verbs::kPartHeadBytes;
using verbs::PartHead;
using verbs::PartJoiner;
using verbs::PartKind;

std::string SendOf(const PartHead& head, std::string_view part) {
  const auto bytes = Encode(head);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + std::string(part);
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(MessageParts, AHeadComesBackAsItWas) {
  const PartHead head{.kind = PartKind::kMore,
                      .waited = true,
                      .number = 0x01020304,
                      .report = {.received = 0x11121314, .granted = 0x21222324}};
  const std::string bytes = SendOf(head, "x");
  EXPECT_EQ(bytes, std::string("\1\1\0\0\4\3\2\1\x14\x13\x12\x11\x24\x23\x22\x21x", 17));
  ASSERT_OK_AND_ASSIGN(const PartHead back, DecodePartHead(Bytes(bytes)));
  EXPECT_EQ(back.kind, head.kind);
  EXPECT_TRUE(back.waited);
  EXPECT_EQ(back.number, head.number);
  EXPECT_EQ(back.report.received, head.report.received);
  EXPECT_EQ(back.report.granted, head.report.granted);
}

TEST(MessageParts, DamagedHeadsAreRefused) {
  const std::string good = SendOf({.kind = PartKind::kLast}, "");
  EXPECT_OK(DecodePartHead(Bytes(good)));
  for (size_t size = 0; size < kPartHeadBytes; ++size) {
    EXPECT_FALSE(DecodePartHead(Bytes(std::string_view(good).substr(0, size))).ok()) << size;
  }
  std::string kind = good;
  kind[0] = 3;
  EXPECT_FALSE(DecodePartHead(Bytes(kind)).ok());
  std::string waited = good;
  waited[1] = 2;
  EXPECT_FALSE(DecodePartHead(Bytes(waited)).ok());
  // Only the last part of a message may be empty, and credit comes alone.
  EXPECT_FALSE(DecodePartHead(Bytes(SendOf({.kind = PartKind::kMore}, ""))).ok());
  EXPECT_FALSE(DecodePartHead(Bytes(SendOf({.kind = PartKind::kCredit}, "x"))).ok());
  EXPECT_OK(DecodePartHead(Bytes(SendOf({.kind = PartKind::kCredit}, ""))));
}

TEST(MessageParts, AreJoinedUpToTheLimit) {
  PartJoiner joiner(10);
  ASSERT_OK_AND_ASSIGN(bool whole, joiner.Add(Bytes("01234"), true));
  EXPECT_FALSE(whole);
  ASSERT_OK_AND_ASSIGN(whole, joiner.Add(Bytes("56789"), false));
  EXPECT_TRUE(whole);
  EXPECT_EQ(joiner.TakeMessage(), "0123456789");
  // The next one begins anew.
  ASSERT_OK_AND_ASSIGN(whole, joiner.Add({}, false));
  EXPECT_TRUE(whole);
  EXPECT_EQ(joiner.TakeMessage(), "");
  ASSERT_OK_AND_ASSIGN(whole, joiner.Add(Bytes("0123456789"), true));
  EXPECT_FALSE(whole);
  EXPECT_FALSE(joiner.Add(Bytes("0"), false).ok());
}

}  // namespace
}  // namespace kvxfer::testing
