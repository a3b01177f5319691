// Forwards TCP connections to an agent. When told, it cuts them (all, or those of one rail), or
// lets nothing pass while they stay open.
#ifndef KVXFER_TESTS_SUPPORT_TCP_PROXY_H_
#define KVXFER_TESTS_SUPPORT_TCP_PROXY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace kvxfer::testing {

class TcpProxy {
 public:
  // Listens on an ephemeral port of 127.0.0.1 and starts its thread.
  TcpProxy();
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  // "127.0.0.1:port", to advertise.
  std::string address() const;
  // Where connections go from now on: "127.0.0.1:port".
  void SetTarget(const std::string& address);
  // Resets every connection that is up; new ones are forwarded again. The number of them.
  size_t Cut();
  // The same of the connections that are data streams of `rail`.
  size_t CutRail(uint32_t rail);
  // Whether everything waits that is to pass, either way.
  void Hold(bool held);
  // Control streams that were begun so far.
  size_t links() const { return links_; }

 private:
  struct Direction {
    int to = -1;
    std::string pending;  // read, not yet written
    bool ended = false;
    bool asked = false;   // from the side that connected
    std::string first{};  // of that: the bytes that say which stream it is
  };

  void Run();
  void Accept();
  // False: the connection of `from` is over.
  bool Forward(int from);
  void Close(int fd);
  // Of a connection, by the side that asked for it: is it to be closed?
  size_t Reset(const std::function<bool(const Direction&)>& chosen);

  int listener_ = -1;
  int wake_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> links_{0};
  std::mutex mutex_;  // guards what follows
  uint16_t target_port_ = 0;
  bool held_ = false;
  std::map<int, Direction> directions_;  // by the descriptor read from
  std::thread thread_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TCP_PROXY_H_
