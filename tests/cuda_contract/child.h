// Other processes of a case: this program again, with a socket between the two.
//
//   KVXFER_CONTRACT_CHILD(Echo) { socket->Send(socket->Receive<int>()); return 0; }
//   ...
//   Child child("Echo");
#ifndef KVXFER_TESTS_CUDA_CONTRACT_CHILD_H_
#define KVXFER_TESTS_CUDA_CONTRACT_CHILD_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvxfer::testing {

// One end. What fails ends the process: the case fails at the other end.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  template <typename Value>
  void Send(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    SendBytes(&value, sizeof(value));
  }
  template <typename Value>
  Value Receive() {
    Value value{};
    ReceiveBytes(&value, sizeof(value));
    return value;
  }
  void SendDescriptor(int fd);
  int ReceiveDescriptor();

 private:
  void SendBytes(const void* data, size_t bytes);
  void ReceiveBytes(void* data, size_t bytes);
  const int fd_;
};

using ContractChild = int (*)(Socket* socket);
bool RegisterContractChild(const char* name, ContractChild main);
std::optional<int> RunIfContractChild(int argc, char** argv);

// Killed and reaped by the destructor if it still runs.
class Child {
 public:
  // `environment`: NAME=VALUE, besides that of this process.
  explicit Child(const std::string& name, const std::vector<std::string>& environment = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Socket& socket() { return *socket_; }
  pid_t pid() const { return pid_; }
  void Kill();
  // Its exit status, or 128 + signal; waits up to a minute, then kills it.
  int Wait();

 private:
  pid_t pid_ = -1;
  Socket* socket_ = nullptr;
};

}  // namespace kvxfer::testing

#define KVXFER_CONTRACT_CHILD(name)                                    \
  static int name([[maybe_unused]] ::kvxfer::testing::Socket* socket); \
  [[maybe_unused]] static const bool registered_##name =               \
      ::kvxfer::testing::RegisterContractChild(#name, &name);          \
  static int name([[maybe_unused]] ::kvxfer::testing::Socket* socket)

#endif  // KVXFER_TESTS_CUDA_CONTRACT_CHILD_H_
