// Other processes of a test: the test's own program again, started with a hidden first argument
// that names a function of this binary. The program starts afresh, so there is no inherited thread
// or lock.
#ifndef KVXFER_TESTS_SUPPORT_CHILD_PROCESS_H_
#define KVXFER_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::testing {

// What runs in the child; its result is the exit status.
using ChildMain = int (*)(const std::vector<std::string>& arguments);
bool RegisterChild(const char* name, ChildMain main);
// If the program was started as a child: its exit status.
std::optional<int> RunIfChild(int argc, char** argv);

// A started child; killed and reaped by the destructor if it still runs.
class ChildProcess {
 public:
  // `inherited` >= 0 becomes a descriptor of the child, its number the last argument.
  static absl::StatusOr<ChildProcess> Start(std::string_view name,
                                            std::vector<std::string> arguments, int inherited = -1);
  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // After SIGSTOP: returns once every thread of it has stopped.
  void WaitStopped() const;
  // The exit status, 128 + signal, or nothing when it still runs after `limit`.
  std::optional<int> WaitExit(Duration limit);

 private:
  pid_t pid_ = -1;
};

// Starts the child, waits for it, and returns its exit status; -1 when it took longer.
int RunChild(std::string_view name, std::vector<std::string> arguments, Duration limit);

}  // namespace kvxfer::testing

// KVXFER_CHILD(Name) { ... `arguments` ...; return 0; }
#define KVXFER_CHILD(name)                                    \
  static int name(const std::vector<std::string>& arguments); \
  [[maybe_unused]] static const bool registered_##name =      \
      ::kvxfer::testing::RegisterChild(#name, &name);         \
  static int name([[maybe_unused]] const std::vector<std::string>& arguments)

// In a child: returns 1 with a line on stderr unless `condition` holds.
#define CHILD_EXPECT(condition)                                                           \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: child expected %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                           \
    }                                                                                     \
  } while (false)

#endif  // KVXFER_TESTS_SUPPORT_CHILD_PROCESS_H_
