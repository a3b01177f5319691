#include "src/core/base/random.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <set>
#include <vector>

#include "kvxfer/agent.h"
#include "src/core/base/signing_key.h"
#include "tests/support/child_process.h"
#include "tests/support/flavour.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

// True when all bytes of `draws` arrays that FillRandom fills differ among each other.
template <size_t kBytes>
bool DrawsDiffer(int draws) {
  std::set<std::array<uint8_t, kBytes>> seen;
  for (int i = 0; i < draws; ++i) {
    std::array<uint8_t, kBytes> bytes{};
    FillRandom(bytes);
    if (!seen.insert(bytes).second) return false;
  }
  return true;
}

bool WordsDiffer() {
  std::set<uint64_t> seen{0};
  for (int i = 0; i < 1000; ++i) {
    if (!seen.insert(RandomNonZero64()).second) return false;
  }
  return RandomNonZero32() != 0;
}

TEST(Random, DrawsDifferInAnySize) {
  EXPECT_TRUE(DrawsDiffer<8>(1000));
  EXPECT_TRUE(DrawsDiffer<16>(1000));
  EXPECT_TRUE(DrawsDiffer<37>(1000));
  EXPECT_TRUE(WordsDiffer());
  std::array<uint8_t, 37> secret{};
  EXPECT_TRUE(FillSecret(secret));
  EXPECT_NE(secret, (std::array<uint8_t, 37>{}));
}

// From now on that system call fails in this process.
bool Forbid(uint32_t call) {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}
bool ForbidGetrandom() {
  uint8_t byte = 0;
  return Forbid(__NR_getrandom) && getrandom(&byte, 1, 0) < 0;
}

// In a sandbox without getrandom identities and keys are still unique, and nobody waits for ever.
KVXFER_CHILD(WithoutGetrandom) {
  CHILD_EXPECT(ForbidGetrandom());
  CHILD_EXPECT(DrawsDiffer<16>(1000) && DrawsDiffer<37>(1000));
  CHILD_EXPECT(WordsDiffer());
  CHILD_EXPECT(Incarnation::Random() != Incarnation::Random());
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(OptionsFor(TcpFlavour(), "a"));
  CHILD_EXPECT(agent.ok());
  std::vector<std::byte> memory(4096);
  for (int i = 0; i < 100; ++i) {
    CHILD_EXPECT(
        (*agent)
            ->RegisterMemory({.data = memory.data(), .bytes = memory.size()}, Access::kReadWrite)
            .ok());
  }
  return 0;
}

// A key of bits that can be guessed would prove nothing: there is none then.
KVXFER_CHILD(WithoutSecrets) {
  CHILD_EXPECT(ForbidGetrandom());
  std::array<uint8_t, 32> bits{};
  CHILD_EXPECT(FillSecret(bits) && bits != (std::array<uint8_t, 32>{}));
  CHILD_EXPECT(Forbid(__NR_openat));
  CHILD_EXPECT(!FillSecret(bits));
  CHILD_EXPECT(DrawsDiffer<16>(1000));
  const auto key = SigningKey::Generate();
  CHILD_EXPECT(absl::IsUnavailable(key.status()));
  CHILD_EXPECT(key.status().message().find("/dev/urandom") != absl::string_view::npos);
  return 0;
}

TEST(Random, WithoutSecretBitsThereIsNoKey) {
  EXPECT_EQ(RunChild("WithoutSecrets", {}, kAmple), 0);
}

TEST(Random, WithoutGetrandom) { EXPECT_EQ(RunChild("WithoutGetrandom", {}, kAmple), 0); }

}  // namespace
}  // namespace kvxfer::testing
