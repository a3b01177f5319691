// Runs of the `kvxfer` program.
#ifndef KVXFER_TESTS_INTEGRATION_CLI_PROGRAM_H_
#define KVXFER_TESTS_INTEGRATION_CLI_PROGRAM_H_

#include <sys/types.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/common/exit_status.h"

namespace kvxfer::cli {

// A run of the program with its output in pipes; killed when it outlives the object.
class Program {
 public:
  // `path`: runs another program than `kvxfer`.
  explicit Program(std::vector<std::string> arguments, const char* path = nullptr);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits for the end and collects the rest of the output. Returns the exit status.
  ExitStatus Wait();
  std::string ReadLine();
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  pid_t pid() const { return pid_; }
  // Returns its child processes in the order of their start, once there are `count`, or after half
  // a minute.
  std::vector<pid_t> WaitForChildren(size_t count) const;

 private:
  // Returns false at the end of both pipes, or after `milliseconds` without output.
  bool ReadSome(int milliseconds);

  pid_t pid_ = -1;
  std::array<int, 2> fds_{-1, -1};
  std::array<bool, 2> open_{true, true};
  std::string out_;
  std::string err_;
};

struct Result {
  ExitStatus status;
  nlohmann::json json;  // of `out`
  std::string out;
  std::string err;
};

Result Finish(Program& program);
Result RunProgram(const std::vector<std::string>& arguments);
// Runs a command line in a shell, where $0 is the program.
Result RunShell(const std::string& command);

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_INTEGRATION_CLI_PROGRAM_H_
