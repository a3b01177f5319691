#include "tests/support/two_hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/core/base/strings.h"

namespace kvxfer::testing {
namespace {

absl::Status CannotHere(const char* what) {
  return absl::FailedPreconditionError(ErrnoText(what, errno));
}

ifreq Named(const char* device) {
  ifreq request{};
  std::strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  return request;
}

sockaddr V4(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text, &address.sin_addr);
  sockaddr out{};
  std::memcpy(&out, &address, sizeof(out));
  return out;
}

// Of the calling thread's namespace. Sets the address, unless it is null, and brings `device` up.
absl::Status BringUp(const char* device, const char* address) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return CannotHere("socket");
  ifreq request = Named(device);
  bool ok = true;
  if (address != nullptr) {
    request.ifr_addr = V4(address);
    ok = ioctl(fd, SIOCSIFADDR, &request) == 0;
    request.ifr_netmask = V4("255.255.255.0");
    ok = ok && ioctl(fd, SIOCSIFNETMASK, &request) == 0;
  }
  request = Named(device);
  ok = ok && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<int16_t>(request.ifr_flags | IFF_UP | IFF_RUNNING);
  ok = ok && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  absl::Status status = ok ? absl::OkStatus() : CannotHere("setting up a network device");
  close(fd);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TwoHosts>> TwoHosts::Make() {
  std::unique_ptr<TwoHosts> hosts(new TwoHosts);
  for (size_t host = 0; host < 2; ++host) {
    absl::Status status;
    // A namespace belongs to a thread until it is left; this one ends with its work.
    std::thread([&] { status = hosts->MakeHost(host); }).join();
    if (!status.ok()) return status;
  }
  hosts->stop_ = eventfd(0, EFD_CLOEXEC);
  if (hosts->stop_ < 0) return CannotHere("eventfd");
  hosts->cable_ = std::thread([cable = hosts.get()] { cable->Piggyback(); });
  return hosts;
}

absl::Status TwoHosts::MakeHost(size_t host) {
  if (unshare(CLONE_NEWNET) != 0) return CannotHere("making a network namespace (needs root)");
  namespaces_[host] = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (namespaces_[host] < 0) return CannotHere("/proc/thread-self/ns/net");
  devices_[host] = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (devices_[host] < 0) return CannotHere("/dev/net/tun");
  ifreq request = Named("cable");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(devices_[host], TUNSETIFF, &request) != 0) return CannotHere("making a tun device");
  absl::Status status = BringUp("lo", nullptr);
  status.Update(BringUp("cable", kAddresses[host]));
  return status;
}

void TwoHosts::Piggyback() const {
  std::array<pollfd, 3> waits = {pollfd{devices_[0], POLLIN, 0}, pollfd{devices_[1], POLLIN, 0},
                                 pollfd{stop_, POLLIN, 0}};
  std::array<char, 65536> packet;
  while (poll(waits.data(), waits.size(), -1) >= 0 || errno == EINTR) {
    if (waits[2].revents != 0) return;
    for (size_t host = 0; host < 2; ++host) {
      if (waits[host].revents == 0) continue;
      const ssize_t size = read(devices_[host], packet.data(), packet.size());
      // A packet that the other side does not take is lost, as packets are.
      if (size > 0) (void)!write(devices_[1 - host], packet.data(), static_cast<size_t>(size));
    }
  }
}

TwoHosts::~TwoHosts() {
  if (cable_.joinable()) {
    eventfd_write(stop_, 1);
    cable_.join();
  }
  for (const int fd : {namespaces_[0], namespaces_[1], devices_[0], devices_[1], stop_}) {
    if (fd >= 0) close(fd);
  }
}

void TwoHosts::On(size_t host, const std::function<void()>& what) const {
  std::thread([&] {
    // Nothing may run on the wrong host.
    if (setns(namespaces_[host], CLONE_NEWNET) != 0) std::abort();
    what();
  }).join();
}

}  // namespace kvxfer::testing
