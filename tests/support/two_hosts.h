// Two network namespaces joined by a cable: what is two hosts to everything above IP.
//
// Needs the right to make namespaces and /dev/net/tun. The cable is two tun devices and a thread
// that carries packets between them, so no kernel module beyond tun is needed, and nothing outside
// of the namespaces is touched. All of it goes with the object.
#ifndef KVXFER_TESTS_SUPPORT_TWO_HOSTS_H_
#define KVXFER_TESTS_SUPPORT_TWO_HOSTS_H_

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"

namespace kvxfer::testing {

class TwoHosts {
 public:
  static constexpr std::array<const char*, 2> kAddresses = {"10.77.0.1", "10.77.0.2"};

  // FailedPrecondition: why it cannot be had here.
  static absl::StatusOr<std::unique_ptr<TwoHosts>> Make();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // Runs `what` on a thread of host 0 or 1 and waits for it. Processes that it starts stay there.
  void On(size_t host, const std::function<void()>& what) const;

 private:
  TwoHosts() = default;
  absl::Status MakeHost(size_t host);
  void Piggyback() const;

  std::array<int, 2> namespaces_{-1, -1};
  std::array<int, 2> devices_{-1, -1};  // tun: one packet a read or write
  int stop_ = -1;
  std::thread cable_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TWO_HOSTS_H_
