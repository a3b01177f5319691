#include "src/core/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvxfer {
namespace {

// Every test leaves the sink and the level as a program finds them.
class LogTest : public testing::Test {
 protected:
  void TearDown() override {
    SetLogSink({});
    SetLogLevel(LogLevel::kWarning);
  }

  void Capture() {
    SetLogSink([this](LogLevel level, std::string_view line) {
      lines_.emplace_back(level, std::string(line));
    });
  }

  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(LogTest, WarningsAndErrorsAreOnByDefault) {
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarning));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
}

TEST_F(LogTest, OffIsNoLevelToLogAt) {
  Capture();
  EXPECT_FALSE(LogEnabled(LogLevel::kOff));
  LogLine(LogLevel::kOff, "nothing");
  SetLogLevel(LogLevel::kOff);
  Log(LogLevel::kError, "nothing");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, SinkGetsLevelAndFormattedLine) {
  Capture();
  SetLogLevel(LogLevel::kDebug);
  Log(LogLevel::kDebug, "peer {}: {} blocks", "decode-0", 7);
  Log(LogLevel::kError, "100 %");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], std::pair(LogLevel::kDebug, std::string("peer decode-0: 7 blocks")));
  EXPECT_EQ(lines_[1], std::pair(LogLevel::kError, std::string("100 %")));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  Capture();
  SetLogLevel(LogLevel::kError);
  Log(LogLevel::kWarning, "dropped");
  Log(LogLevel::kError, "kept");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].second, "kept");
}

TEST_F(LogTest, BracesInALineAreNotAFormat) {
  Capture();
  LogLine(LogLevel::kWarning, "as it is: {} {0} {");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].second, "as it is: {} {0} {");

  SetLogSink({});
  testing::internal::CaptureStderr();
  LogLine(LogLevel::kWarning, "as it is: {} {0} {");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("as it is: {} {0} {\n"), std::string::npos);
}

TEST_F(LogTest, WithoutASinkWarningsGoToStderrAndInfoDoesNot) {
  Capture();
  SetLogSink({});
  testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarning, "loud {}", 1);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("kvxfer warning: loud 1\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("quiet"), std::string::npos) << text;
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, ReplacedSinkIsNotCalledAndNotKept) {
  auto alive = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = alive;
  SetLogSink([alive = std::move(alive)](LogLevel, std::string_view) { ++*alive; });
  Log(LogLevel::kError, "first");
  EXPECT_EQ(*watch.lock(), 1);
  Capture();
  EXPECT_TRUE(watch.expired());
  Log(LogLevel::kError, "second");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].second, "second");
}

// Each sink owns what it counts into; a call after its replacement would touch freed memory.
TEST_F(LogTest, SinksMayBeReplacedWhileOthersLog) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  std::atomic<int> seen = 0;
  const auto count = [&seen] {
    auto mine = std::make_unique<std::atomic<int>>(0);
    return [&seen, mine = std::shared_ptr<std::atomic<int>>(std::move(mine))](LogLevel,
                                                                              std::string_view) {
      mine->fetch_add(1);
      seen.fetch_add(1);
    };
  };
  SetLogSink(count());
  std::vector<std::jthread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) Log(LogLevel::kError, "thread {} line {}", t, i);
    });
  }
  for (int i = 0; i < 100; ++i) SetLogSink(count());
  threads.clear();
  EXPECT_EQ(seen.load(), kThreads * kLines);
}

}  // namespace
}  // namespace kvxfer
