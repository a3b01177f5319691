// Names and tokens of KV caches cannot be taken for one another.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvxfer/agent.h"

namespace kvxfer {
namespace {

template <typename To, typename From>
constexpr bool kSilently = std::is_convertible_v<From, To>;

static_assert(!kSilently<CacheName, const char*> && !kSilently<CacheName, std::string>);
static_assert(!kSilently<std::string, LeaseName> && !kSilently<std::string_view, LeaseName>);
static_assert(!std::is_constructible_v<CacheName, RequestName>);
static_assert(!std::is_constructible_v<LeaseName, RequestName>);
static_assert(!std::is_constructible_v<RequestName, LeaseName>);
static_assert(!kSilently<QuiesceToken, uint64_t> && !kSilently<uint64_t, QuiesceToken>);

TEST(KvNames, AreTheTextsTheyWereMadeOf) {
  const std::string text = "request 7";
  EXPECT_EQ(RequestName(text).text, text);
  EXPECT_EQ(RequestName(std::string_view(text)), RequestName("request 7"));
  EXPECT_NE(LeaseName("a"), LeaseName("b"));
  EXPECT_LT(CacheName("a"), CacheName("b"));
  EXPECT_TRUE(CacheName().empty());
  EXPECT_FALSE(CacheName("kv").empty());
}

}  // namespace
}  // namespace kvxfer
