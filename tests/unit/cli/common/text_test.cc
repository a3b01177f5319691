// Sizes, times, addresses, statistics and tables of the command line.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/common/exit_status.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

TEST(ParseSize, TakesPowersOf1024) {
  EXPECT_EQ(ParseSize("0").value(), 0u);
  EXPECT_EQ(ParseSize("4096").value(), 4096u);
  EXPECT_EQ(ParseSize("17B").value(), 17u);
  EXPECT_EQ(ParseSize("4K").value(), 4096u);
  EXPECT_EQ(ParseSize("64KiB").value(), 65536u);
  EXPECT_EQ(ParseSize("64kib").value(), 65536u);
  EXPECT_EQ(ParseSize("1m").value(), uint64_t{1} << 20);
  EXPECT_EQ(ParseSize("2G").value(), uint64_t{2} << 30);
  EXPECT_EQ(ParseSize("3TiB").value(), uint64_t{3} << 40);
  EXPECT_EQ(ParseSize("18446744073709551615").value(), UINT64_MAX);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "K", "4KB", "4X", "4KiBs", "4 K", "-1", "+4", "1.5M", "0x10",
                           "18446744073709551616", "16777216T", "4i"}) {
    const auto size = ParseSize(text);
    ASSERT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument) << text;
    // Expect the message to quote what was typed.
    EXPECT_NE(std::string(size.status().message()).find("'" + std::string(text) + "'"),
              std::string::npos);
  }
}

TEST(ParseSizes, DoublesRangesAndJoinsLists) {
  EXPECT_EQ(ParseSizes("64K").value(), std::vector<uint64_t>{65536});
  EXPECT_EQ(ParseSizes("4K:32K").value(), (std::vector<uint64_t>{4096, 8192, 16384, 32768}));
  // Expect a last size that is not met to bound the range.
  EXPECT_EQ(ParseSizes("3:20").value(), (std::vector<uint64_t>{3, 6, 12}));
  EXPECT_EQ(ParseSizes("1,4K:8K,2").value(), (std::vector<uint64_t>{1, 4096, 8192, 2}));
  EXPECT_EQ(ParseSizes("8:8").value(), std::vector<uint64_t>{8});
  // Expect no overflow at the top of 64 bits.
  EXPECT_EQ(ParseSizes("1:18446744073709551615").value().size(), 64u);
}

TEST(ParseSizes, RefusesBadRanges) {
  for (const char* text :
       {"", "0", "0:4K", "8K:4K", "4K:", ":4K", "4K,", "4K:8K:16K", "1:18446744073709551615,1"}) {
    EXPECT_EQ(ParseSizes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseDuration, NeedsAUnit) {
  EXPECT_EQ(ParseDuration("250us").value(), std::chrono::microseconds(250));
  EXPECT_EQ(ParseDuration("10ms").value(), std::chrono::milliseconds(10));
  EXPECT_EQ(ParseDuration("2m").value(), std::chrono::minutes(2));
  EXPECT_EQ(ParseDuration("7ns").value(), Duration(7));
  EXPECT_EQ(ParseDuration("0").value(), Duration(0));
  for (const char* text : {"", "5", "s", "1h", "-1s", "1.5s", "99999999999999999999s", "864001s"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(4096), "4 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 30), "3 GiB");
}

TEST(FormatSize, IsWhatParseSizeTakes) {
  EXPECT_EQ(FormatSize(0), "0");
  EXPECT_EQ(FormatSize(17), "17");
  EXPECT_EQ(FormatSize(4096), "4K");
  EXPECT_EQ(FormatSize(1536), "1536");
  EXPECT_EQ(FormatSize(uint64_t{256} << 20), "256M");
  for (const uint64_t size : {uint64_t{1}, uint64_t{1023}, uint64_t{3} << 40, UINT64_MAX}) {
    EXPECT_EQ(ParseSize(FormatSize(size)).value(), size);
  }
}

TEST(FormatDuration, IsWhatParseDurationTakes) {
  EXPECT_EQ(FormatDuration(std::chrono::seconds(60)), "60s");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(1500)), "1500ms");
  EXPECT_EQ(FormatDuration(std::chrono::microseconds(250)), "250us");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(10), " "), "10 ms");
  for (const Duration time : {Duration(0), Duration(1), Duration(864'000'000'000'000)}) {
    EXPECT_EQ(ParseDuration(FormatDuration(time)).value(), time);
  }
}

TEST(FormatTime, HasThreeDigits) {
  EXPECT_EQ(FormatTime(7.5e-6), "7.50 us");
  EXPECT_EQ(FormatTime(0.0123), "12.3 ms");
  EXPECT_EQ(FormatTime(999.4e-6), "999 us");
  EXPECT_EQ(FormatTime(999.6e-6), "1.00 ms");
  EXPECT_EQ(FormatTime(2), "2.00 s");
  EXPECT_EQ(FormatTime(1234), "1234 s");
}

TEST(ParseHostPort, TakesNamesAndBothFamilies) {
  struct Case {
    const char* text;
    const char* host;
    uint16_t port;
    const char* shown;
  };
  for (const Case& c :
       {Case{"node7", "node7", kDefaultPort, "node7:7471"},
        Case{"node7:80", "node7", 80, "node7:80"}, Case{"10.0.0.1:0", "10.0.0.1", 0, "10.0.0.1:0"},
        Case{"[::1]:9", "::1", 9, "[::1]:9"},
        Case{"[fe80::1]", "fe80::1", kDefaultPort, "[fe80::1]:7471"},
        Case{"::1", "::1", kDefaultPort, "[::1]:7471"}}) {
    const auto parsed = ParseHostPort(c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
    EXPECT_EQ(parsed->ToString(), c.shown);
  }
}

TEST(ParseHostPort, RefusesWhatIsNoAddress) {
  for (const char* text : {"", ":80", "a:", "a:65536", "a:x", "[::1", "[::1]80", "[]:1", "a:-1"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Summarize, GivesNearestRanks) {
  std::vector<double> samples;
  for (int i = 1000; i >= 1; --i) samples.push_back(i);
  const Summary s = Summarize(samples);
  EXPECT_EQ(s.count, 1000u);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.p50, 500);
  EXPECT_EQ(s.p99, 990);
  EXPECT_EQ(s.p999, 999);
  EXPECT_EQ(s.max, 1000);
  EXPECT_DOUBLE_EQ(s.mean, 500.5);
  // Expect one sample to be every rank, and none to be zeros.
  EXPECT_EQ(Summarize({7}).p999, 7);
  EXPECT_EQ(Summarize({7}).p50, 7);
  EXPECT_EQ(Summarize({}).max, 0);
}

TEST(CpuSeconds, RisesWithWork) {
  const double before = CpuSeconds();
  volatile uint64_t sum = 0;
  while (CpuSeconds() - before < 0.01) sum = sum + 1;
  EXPECT_GT(sum, 0u);
}

TEST(Table, AlignsToTheRight) {
  const Table table({{"a", 4}, {"long title"}});
  EXPECT_EQ(table.Header(), "   a  long title");
  EXPECT_EQ(table.Row(std::vector<std::string>{"12", "x"}), "  12           x");
  // Expect a long cell to stay whole.
  EXPECT_EQ(table.Row(std::vector<std::string>{"123456", "x"}), "123456           x");
}

TEST(ExitStatus, FollowsTheStatus) {
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kOk), ExitStatus::kOk);
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kDataLoss), ExitStatus::kFailed);
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kInvalidArgument), ExitStatus::kUsage);
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kUnavailable), ExitStatus::kUnreachable);
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kDeadlineExceeded), ExitStatus::kTimedOut);
  EXPECT_EQ(ExitStatusOf(kTimedOut), ExitStatus::kTimedOut);
  EXPECT_EQ(ExitStatusOf(absl::StatusCode::kFailedPrecondition), ExitStatus::kNotUsable);
}

}  // namespace
}  // namespace kvxfer::cli
