// G6: a backend that cannot work on this machine is left out of the default list, with a warning
// and an explanation; what was asked for by name is an error.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "kvxfer/log.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

// As some container run-times do: from now on pidfd_open fails with `error` in this process.
bool ForbidPidfd(int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = static_cast<uint16_t>(std::size(filter)), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

const PathExplanation* FindPath(const Explanation& all, std::string_view backend) {
  for (const PathExplanation& path : all.paths) {
    if (path.backend == backend) return &path;
  }
  return nullptr;
}

absl::Status WriteOverTcp(const Node& from, const Node& to) {
  const BlockSet blocks({}, from.memory.address(), to.memory.address());
  TransferOptions options = Unhurried();
  options.backend = "tcp";
  absl::StatusOr<Transfer> transfer = blocks.Write(*from.agent, to.name(), options);
  return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
}

AgentOptions Named(std::string name) {
  AgentOptions options;
  options.name = std::move(name);
  return options;
}

std::atomic<int> warnings{0};

KVXFER_CHILD(AgentsWithoutPidfd) {
  const bool missing = arguments.at(0) == "ENOSYS";
  if (!ForbidPidfd(missing ? ENOSYS : EPERM)) return 77;
  SetLogSink([](LogLevel level, std::string_view line) {
    warnings += level == LogLevel::kWarning && line.find("shm") != std::string_view::npos ? 1 : 0;
  });
  absl::StatusOr<Node> a = Node::Create(Named("a"), MemoryType::kAttached, 1 << 20);
  if (!a.ok()) std::fprintf(stderr, "%s\n", a.status().ToString().c_str());
  CHILD_EXPECT(a.ok());
  CHILD_EXPECT(FlushLog(kAmple));
  CHILD_EXPECT(warnings == 1);
  absl::StatusOr<Node> b = Node::Create(Named("b"), MemoryType::kAttached, 1 << 20);
  CHILD_EXPECT(b.ok());
  CHILD_EXPECT(Introduce(*a->agent, *b->agent).ok() && Introduce(*b->agent, *a->agent).ok());
  CHILD_EXPECT(WriteOverTcp(*a, *b).ok());

  const absl::StatusOr<Explanation> explained = a->agent->Explain("b");
  CHILD_EXPECT(explained.ok());
  const PathExplanation* shm = FindPath(*explained, "shm");
  CHILD_EXPECT(shm != nullptr && !shm->usable && !shm->chosen);
  CHILD_EXPECT(absl::StrContains(shm->why, "seccomp"));
  CHILD_EXPECT(absl::StrContains(shm->why, "kernel") == missing);
  CHILD_EXPECT(FindPath(*explained, "tcp")->connected);

  AgentOptions chosen = Named("c");
  chosen.backends = {"shm", "tcp"};
  CHILD_EXPECT(Fails(Agent::Create(chosen), absl::StatusCode::kUnavailable, {"shm", "seccomp"}));
  AgentOptions required = Named("d");
  required.require_backends = {"shm"};
  CHILD_EXPECT(Fails(Agent::Create(required), absl::StatusCode::kUnavailable, {"shm", "seccomp"}));
  required.require_backends = {"shm", "tcp"};
  CHILD_EXPECT(Agent::Create(required).ok());
  return 0;
}

class UnusableBackend : public ::testing::TestWithParam<const char*> {};

TEST_P(UnusableBackend, IsLeftOutAndExplained) {
  const int status = RunChild("AgentsWithoutPidfd", {GetParam()}, kAmple);
  if (status == 77) GTEST_SKIP() << "seccomp filters are not to be had here";
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Errors, UnusableBackend, ::testing::Values("EPERM", "ENOSYS"),
                         [](const auto& error) { return error.param; });

// On a host without RDMA devices, which is no news there unless it was asked for.
TEST(UnusableVerbs, IsToldOnlyToThoseWhoAsk) {
  std::error_code error;
  if (!std::filesystem::is_empty("/sys/class/infiniband", error) && !error) {
    GTEST_SKIP() << "this host has verbs devices";
  }
  warnings = 0;
  SetLogSink([](LogLevel level, std::string_view) { warnings += level >= LogLevel::kWarning; });
  ASSERT_OK_AND_ASSIGN(const Node a, Node::Create(Named("a"), MemoryType::kAttached, 4096));
  ASSERT_OK_AND_ASSIGN(const Node b, Node::Create(Named("b"), MemoryType::kAttached, 4096));
  ASSERT_OK(Introduce(*a.agent, *b.agent));
  ASSERT_OK_AND_ASSIGN(const Explanation all, a.agent->Explain("b"));
  EXPECT_TRUE(FlushLog(kAmple));
  SetLogSink({});
  EXPECT_EQ(warnings, 0);
  const PathExplanation* verbs = FindPath(all, "verbs");
  ASSERT_NE(verbs, nullptr);
  EXPECT_FALSE(verbs->usable);
  EXPECT_TRUE(absl::StrContains(verbs->why, "no RDMA device")) << verbs->why;

  AgentOptions required = Named("c");
  required.require_backends = {"verbs"};
  EXPECT_TRUE(Fails(Agent::Create(required), absl::StatusCode::kUnavailable,
                    {"required", "verbs", "no RDMA device"}));
  AgentOptions chosen = Named("d");
  chosen.backends = {"verbs", "tcp"};
  EXPECT_TRUE(
      Fails(Agent::Create(chosen), absl::StatusCode::kUnimplemented, {"verbs", "no RDMA device"}));
}

}  // namespace
}  // namespace kvxfer::testing
