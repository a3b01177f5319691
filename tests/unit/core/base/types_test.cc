#include "kvxfer/types.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "src/core/base/host_identity.h"
#include "src/core/base/strings.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

TEST(Incarnation, ToStringIs32HexDigits) {
  Incarnation incarnation;
  EXPECT_EQ(incarnation.ToString(), std::string(32, '0'));
  incarnation.bytes[0] = 0x0f;
  incarnation.bytes[15] = 0xa1;
  EXPECT_EQ(incarnation.ToString(), "0f0000000000000000000000000000a1");
}

TEST(Incarnation, RandomOnesDifferInEveryByte) {
  std::set<Incarnation> seen;
  std::array<std::set<uint8_t>, 16> values;
  for (int i = 0; i < 1000; ++i) {
    const Incarnation incarnation = Incarnation::Random();
    EXPECT_FALSE(incarnation.IsZero());
    EXPECT_TRUE(seen.insert(incarnation).second);
    for (size_t b = 0; b < 16; ++b) values[b].insert(incarnation.bytes[b]);
  }
  // Of 256 values a fair byte shows about 250 in 1000 draws.
  for (const auto& byte_values : values) EXPECT_GT(byte_values.size(), 150u);
}

TEST(Access, AllowsWhatIsGranted) {
  EXPECT_TRUE(Allows(Access::kReadWrite, Access::kRemoteRead));
  EXPECT_TRUE(Allows(Access::kNone, Access::kNone));
  EXPECT_FALSE(Allows(Access::kRemoteRead, Access::kRemoteWrite));
  EXPECT_FALSE(Allows(Access::kRemoteWrite, Access::kReadWrite));
}

TEST(Strings, ErrnoTextNamesTheError) {
  EXPECT_EQ(ErrnoText("connect", ECONNREFUSED), "connect: Connection refused (errno 111)");
  EXPECT_NE(ErrnoText("x", 99999).find("(errno 99999)"), std::string::npos);
}

TEST(Strings, AnnotateKeepsTheCode) {
  EXPECT_OK(Annotate(absl::OkStatus(), "never seen"));
  const absl::Status status = Annotate(absl::NotFoundError("no peer"), "Write");
  EXPECT_TRUE(testing::Fails(status, absl::StatusCode::kNotFound, {"Write: no peer"}));
}

TEST(HostIdentity, IsWhatThisProcessIs) {
  const HostIdentity us = ReadHostIdentity();
  EXPECT_EQ(us.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(us.uid, geteuid());
  EXPECT_FALSE(us.hostname.empty());
  EXPECT_EQ(us.boot_id.size(), 36u) << us.boot_id;
  EXPECT_NE(us.net_namespace, 0u);
  EXPECT_NE(us.pid_namespace, 0u);
  EXPECT_NE(us.start_time, 0u);
  EXPECT_EQ(ReadHostIdentity().start_time, us.start_time);
}

// A child that says who it is, and lives until told to end.
class ProcessGoneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    us_ = ReadHostIdentity();
    int ready[2];
    int stop[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(stop), 0);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      close(stop[1]);
      const uint64_t start_time = ReadHostIdentity().start_time;
      char byte = 0;
      if (write(ready[1], &start_time, sizeof(start_time)) < 0) _exit(1);
      _exit(read(stop[0], &byte, 1) < 0 ? 1 : 0);
    }
    close(stop[0]);
    close(ready[1]);
    stop_ = stop[1];
    them_ = us_;
    them_.pid = static_cast<uint32_t>(child_);
    ASSERT_EQ(read(ready[0], &them_.start_time, sizeof(them_.start_time)),
              static_cast<ssize_t>(sizeof(them_.start_time)));
    close(ready[0]);
  }
  void TearDown() override {
    if (stop_ >= 0) close(stop_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }
  void EndChild() {
    close(stop_);
    stop_ = -1;
  }

  HostIdentity us_;
  HostIdentity them_;
  pid_t child_ = -1;
  int stop_ = -1;
};

TEST_F(ProcessGoneTest, ALivingProcessIsNotGone) {
  EXPECT_FALSE(ProcessGone(them_, us_));
  EXPECT_FALSE(ProcessGone(us_, us_));
}

TEST_F(ProcessGoneTest, AZombieIsGone) {
  EndChild();
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(ProcessGone(them_, us_));
}

TEST_F(ProcessGoneTest, AReapedProcessIsGone) {
  EndChild();
  ASSERT_EQ(waitpid(child_, nullptr, 0), child_);
  child_ = -1;
  EXPECT_TRUE(ProcessGone(them_, us_));
}

TEST_F(ProcessGoneTest, AnotherProcessWithThePidProvesIt) {
  ++them_.start_time;
  EXPECT_TRUE(ProcessGone(them_, us_));
}

TEST_F(ProcessGoneTest, AnUnknownStartTimeProvesNothing) {
  them_.start_time = 0;
  EXPECT_FALSE(ProcessGone(them_, us_));
}

TEST_F(ProcessGoneTest, OtherHostsAndNamespacesProveNothing) {
  EndChild();
  ASSERT_EQ(waitpid(child_, nullptr, 0), child_);
  child_ = -1;
  HostIdentity other = them_;
  other.boot_id = "another";
  EXPECT_FALSE(ProcessGone(other, us_));
  other = them_;
  other.boot_id = "";
  EXPECT_FALSE(ProcessGone(other, HostIdentity{}));
  other = them_;
  ++other.pid_namespace;
  EXPECT_FALSE(ProcessGone(other, us_));
  other = them_;
  other.pid = 0;
  EXPECT_FALSE(ProcessGone(other, us_));
  other.pid = UINT32_MAX;
  EXPECT_FALSE(ProcessGone(other, us_));
}

}  // namespace
}  // namespace kvxfer
