#include "src/core/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <future>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "src/core/base/clock.h"
#include "src/core/base/log_writer.h"
#include "src/core/base/own_fd.h"
#include "tests/support/scale.h"

namespace kvxfer {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using testing::kAmple;
using ::testing::MatchesRegex;

using Line = std::pair<LogLevel, std::string>;

// N of "N log lines were dropped: ..."; 0: another line.
uint64_t DroppedBy(std::string_view line) {
  uint64_t count = 0;
  const size_t at = line.find(" log lines were dropped");
  if (at == std::string_view::npos) return 0;
  const size_t begin = line.rfind(' ', at - 1) + 1;
  std::from_chars(line.data() + begin, line.data() + at, count);
  return count;
}

// The most lines of one cause that a limit lets through from `start` to now.
size_t MostSince(Time start) {
  return LogLimits::kBurst + static_cast<size_t>((Now() - start) / LogLimits::kEvery);
}

// Every test leaves the sink and the level as a program finds them.
class LogTest : public ::testing::Test {
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
  // What was logged so far.
  const std::vector<Line>& Lines() {
    EXPECT_TRUE(FlushLog(kAmple));
    return lines_;
  }

 private:
  std::vector<Line> lines_;  // of the logging thread
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
  EXPECT_TRUE(Lines().empty());
}

TEST_F(LogTest, SinkGetsLevelAndFormattedLine) {
  Capture();
  SetLogLevel(LogLevel::kDebug);
  Log(LogLevel::kDebug, "peer {}: {} blocks", "decode-0", 7);
  Log(LogLevel::kError, "100 %");
  EXPECT_THAT(Lines(), ElementsAre(Line(LogLevel::kDebug, "peer decode-0: 7 blocks"),
                                   Line(LogLevel::kError, "100 %")));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  Capture();
  SetLogLevel(LogLevel::kError);
  Log(LogLevel::kWarning, "dropped");
  Log(LogLevel::kError, "kept");
  EXPECT_THAT(Lines(), ElementsAre(Line(LogLevel::kError, "kept")));
}

TEST_F(LogTest, BracesInALineAreNotAFormat) {
  Capture();
  LogLine(LogLevel::kWarning, "as it is: {} {0} {");
  EXPECT_THAT(Lines(), ElementsAre(Line(LogLevel::kWarning, "as it is: {} {0} {")));

  SetLogSink({});
  ::testing::internal::CaptureStderr();
  LogLine(LogLevel::kWarning, "as it is: {} {0} {");
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("as it is: {} {0} {\n"));
}

TEST_F(LogTest, WithoutASinkWarningsGoToStderrAndInfoDoesNot) {
  Capture();
  SetLogSink({});
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarning, "loud {}", 1);
  EXPECT_TRUE(Lines().empty());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("kvxfer warning: loud 1\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("quiet"), std::string::npos) << text;
}

TEST_F(LogTest, LinesBeforeAChangeGoToTheOldSinkWhichIsNotKept) {
  auto seen = std::make_shared<std::vector<std::string>>();
  const std::weak_ptr<std::vector<std::string>> watch = seen;
  SetLogSink(
      [seen = std::move(seen)](LogLevel, std::string_view line) { seen->emplace_back(line); });
  Log(LogLevel::kError, "first");
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_THAT(*watch.lock(), ElementsAre("first"));
  Capture();
  EXPECT_TRUE(watch.expired());
  Log(LogLevel::kError, "second");
  EXPECT_THAT(Lines(), ElementsAre(Line(LogLevel::kError, "second")));
}

// Each sink owns what it counts into; a call after its replacement would touch freed memory.
TEST_F(LogTest, SinksMayBeReplacedWhileOthersLog) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  std::atomic<uint64_t> seen = 0;
  const auto count = [&seen] {
    auto mine = std::make_unique<std::atomic<int>>(0);
    return [&seen, mine = std::shared_ptr<std::atomic<int>>(std::move(mine))](
               LogLevel, std::string_view line) {
      mine->fetch_add(1);
      const uint64_t dropped = DroppedBy(line);
      seen.fetch_add(dropped > 0 ? dropped : 1);
    };
  };
  SetLogLevel(LogLevel::kDebug);  // which has no limit of rate
  SetLogSink(count());
  std::vector<std::jthread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) Log(LogLevel::kDebug, "thread {} line {}", t, i);
    });
  }
  for (int i = 0; i < 100; ++i) SetLogSink(count());
  threads.clear();
  Log(LogLevel::kDebug, "the last, which says what was dropped before it");
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_EQ(seen.load(), uint64_t{kThreads * kLines + 1});
}

TEST_F(LogTest, ASinkMayLogAndReplaceItself) {
  std::vector<std::string> later;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line != "one") return;
    EXPECT_FALSE(FlushLog(kAmple));
    Log(LogLevel::kError, "from the sink");
    SetLogSink([&later](LogLevel, std::string_view second) { later.emplace_back(second); });
  });
  Log(LogLevel::kError, "one");
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_TRUE(FlushLog(kAmple));  // what the sink has logged came after
  SetLogSink({});
  EXPECT_THAT(later, ElementsAre("from the sink"));
}

TEST_F(LogTest, ASinkThatThrowsLosesItsLineOnly) {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line == "bad") throw std::runtime_error("the application's");
    lines.emplace_back(line);
  });
  Log(LogLevel::kError, "bad");
  Log(LogLevel::kError, "good");
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_THAT(lines, ElementsAre("good"));
}

// A sink that blocks holds up its replacement, and nobody who logs.
TEST_F(LogTest, ASinkThatBlocksDelaysNobody) {
  std::promise<void> entered;
  std::promise<void> leave;
  std::atomic<uint64_t> seen = 0;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line == "block") {
      entered.set_value();
      leave.get_future().wait();
    }
    const uint64_t dropped = DroppedBy(line);
    seen += dropped > 0 ? dropped : 1;
  });
  SetLogLevel(LogLevel::kDebug);
  Log(LogLevel::kDebug, "block");
  entered.get_future().wait();
  constexpr uint64_t kMany = 4 * LogWriter::kQueuedLines;
  for (uint64_t i = 0; i < kMany; ++i) Log(LogLevel::kDebug, "line {}", i);
  EXPECT_FALSE(FlushLog(std::chrono::milliseconds(1)));
  EXPECT_EQ(seen, 0u);

  std::atomic<bool> replaced = false;
  std::jthread other([&] {
    SetLogSink([&seen](LogLevel, std::string_view line) {
      const uint64_t dropped = DroppedBy(line);
      seen += dropped > 0 ? dropped : 1;
    });
    replaced = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(replaced);
  leave.set_value();
  other.join();
  EXPECT_TRUE(FlushLog(kAmple));
  EXPECT_EQ(seen, kMany + 1);
}

TEST_F(LogTest, OneCauseDoesNotFillTheLog) {
  Capture();
  // One a repetition of this test: a cause is the address of a format, and its limit is kept.
  static std::list<std::string> formats;
  const std::string& format = formats.emplace_back("again {}");
  const Time start = Now();
  for (int i = 0; i < 1000; ++i) Log(LogLevel::kWarning, fmt::runtime(format), i);
  const size_t most = MostSince(start);
  Log(LogLevel::kWarning, "something else");
  const std::vector<Line>& lines = Lines();
  ASSERT_GE(lines.size(), LogLimits::kBurst + 1u);
  EXPECT_LE(lines.size(), most + 1);
  EXPECT_EQ(lines.back().second, "something else");
  // A backend's lines go by how they begin.
  const size_t before = lines.size();
  const Time again = Now();
  for (int i = 0; i < 1000; ++i) {
    LogLine(LogLevel::kWarning,
            std::to_string(formats.size()) + " the same sixteen " + std::to_string(i));
  }
  EXPECT_LE(Lines().size() - before, MostSince(again));
}

TEST_F(LogTest, APeersTextForgesNoLineAndIsCut) {
  Capture();
  Log(LogLevel::kWarning, "peer {} lost", "x\n2026-01-01T00:00:00.000 kvxfer error: \x1b[2J\xff");
  Log(LogLevel::kWarning, "long: {}", std::string(100'000, 'y'));
  const std::vector<Line>& lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].second, "peer x\\x0a2026-01-01T00:00:00.000 kvxfer error: \\x1b[2J\\xff lost");
  EXPECT_LE(lines[1].second.size(), 2048u);
  EXPECT_THAT(lines[1].second, EndsWith(" more bytes)"));
}

TEST_F(LogTest, ALongLineHasAllOfItsNotes) {
  Capture();
  constexpr uint64_t kMany = std::numeric_limits<uint64_t>::max();
  log_internal::Finish(LogLevel::kWarning, std::string(100'000, 'y'), kMany);
  PostLogLine(LogLevel::kWarning, std::string(100'000, 'y'));
  const std::vector<Line>& lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0].second, MatchesRegex("y+... .[0-9]+ more bytes. .and 18446744073709551615 "
                                            "more of this kind."));
  for (const Line& line : lines) EXPECT_LE(line.second.size(), 2048u);
}

TEST_F(LogTest, AddressesAndKeysAreNotLogged) {
  Capture();
  Log(LogLevel::kWarning, "{} bytes at 0x{:x} by rkey 0x{:x}", 4096, 0x7f12'3456'7890, 0xdeadbeef);
  EXPECT_THAT(Lines(), ElementsAre(Line(LogLevel::kWarning, "4096 bytes at 0x*** by rkey 0x***")));
}

// A logger of the application, of which lines must not come when it is destroyed.
class AppLogger {
 public:
  // A line of a static destructor that runs later.
  ~AppLogger() {
    destroyed_ = true;
    Log(LogLevel::kError, "after the end");
    FlushLog(kAmple);
  }
  void Write() const {
    if (!destroyed_) return;
    fputs("used after its end\n", stderr);
    _exit(1);
  }

 private:
  std::atomic<bool> destroyed_ = false;
};

void UseStaticLogger(LogLevel, std::string_view) {
  static const AppLogger logger;
  logger.Write();
}

class LogExitTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LogExitTest, ALoggerThatTheSinkMakesIsNotUsedAfterItsEnd) {
  const auto program = [] {
    SetLogSink(&UseStaticLogger);
    Log(LogLevel::kError, "a line");
    exit(FlushLog(kAmple) ? 0 : 2);
  };
  EXPECT_EXIT(program(), ExitedWithCode(0), "");
}

TEST_F(LogExitTest, ALoggerThatIsMadeAfterTheFirstLineIsNotUsedAfterItsEnd) {
  const auto program = [] {
    Log(LogLevel::kError, "to stderr");
    static const AppLogger logger;
    SetLogSink([](LogLevel, std::string_view) { logger.Write(); });
    exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(0), "to stderr");
}

TEST_F(LogExitTest, ALoggerThatGotNoLineIsNotUsedAfterItsEnd) {
  const auto program = [] {
    static const AppLogger logger;
    SetLogSink([](LogLevel, std::string_view) { logger.Write(); });
    exit(0);
  };
  EXPECT_EXIT(program(), ExitedWithCode(0), "");
}

// However many sinks there were, the end of the process waits 200 ms for them together.
TEST_F(LogExitTest, AStuckSinkDelaysTheEndOnce) {
  const auto program = [] {
    std::promise<void> entered;
    SetLogLevel(LogLevel::kDebug);
    for (int i = 0; i < 1000; ++i) SetLogSink([](LogLevel, std::string_view) {});
    SetLogSink([&](LogLevel, std::string_view) {
      entered.set_value();
      for (;;) pause();
    });
    Log(LogLevel::kError, "stuck");
    entered.get_future().wait();
    exit(0);
  };
  const Time start = Now();
  EXPECT_EXIT(program(), ExitedWithCode(0), "");
  EXPECT_LT(Now() - start, kAmple);  // of 200 s
}

// Stderr is this pipe, which takes 4 KiB and which nobody reads, until it is destroyed.
class FullStderr {
 public:
  FullStderr() : stderr_(dup(STDERR_FILENO)) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
    read_ = OwnFd(pipe[0]);
    EXPECT_GT(fcntl(pipe[1], F_SETPIPE_SZ, 4096), 0);
    EXPECT_EQ(dup2(pipe[1], STDERR_FILENO), STDERR_FILENO);
    close(pipe[1]);
  }
  ~FullStderr() { dup2(stderr_.get(), STDERR_FILENO); }

  // What was written, up to the end that `last` is.
  std::string ReadUntil(std::string_view last) const {
    std::string text;
    std::array<char, 4096> some;
    while (text.find(last) == std::string::npos) {
      const ssize_t n = read(read_.get(), some.data(), some.size());
      if (n <= 0) break;
      text.append(some.data(), static_cast<size_t>(n));
    }
    return text;
  }

 private:
  const OwnFd stderr_;
  OwnFd read_;
};

TEST_F(LogTest, AFullStderrDelaysNobodyAndIsToldOfWhatWasDropped) {
  constexpr uint64_t kMany = 4 * LogWriter::kQueuedLines;
  std::string text;
  {
    const FullStderr full;
    SetLogLevel(LogLevel::kDebug);
    for (uint64_t i = 0; i < kMany; ++i) Log(LogLevel::kDebug, "{} {}", std::string(500, 'z'), i);
    Log(LogLevel::kDebug, "the end");
    EXPECT_FALSE(FlushLog(std::chrono::milliseconds(1)));
    text = full.ReadUntil("the end\n");
  }
  // A slow writer may report what was dropped so far before its pipe is full, and the rest later.
  uint64_t logged = 0;
  uint64_t dropped = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const uint64_t lost = DroppedBy({line.data(), line.size()});
    dropped += lost;
    logged += lost == 0 ? 1 : 0;
  }
  EXPECT_GT(dropped, kMany / 2);
  EXPECT_EQ(logged + dropped, kMany + 1);
}

#if !KVXFER_THREAD_SANITIZER
// Not with ThreadSanitizer, which allows no thread after a fork of a process with threads.
TEST_F(LogTest, AForkedChildLogsByAThreadOfItsOwn) {
  Log(LogLevel::kWarning, "the parent's");
  EXPECT_TRUE(FlushLog(kAmple));
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe[1], STDERR_FILENO);
    Log(LogLevel::kWarning, "the child's");
    _exit(FlushLog(kAmple) ? 0 : 1);
  }
  close(pipe[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::array<char, 200> text{};
  EXPECT_GT(read(pipe[0], text.data(), text.size() - 1), 0);
  close(pipe[0]);
  EXPECT_THAT(text.data(), HasSubstr("kvxfer warning: the child's\n"));
}
#endif

}  // namespace
}  // namespace kvxfer
