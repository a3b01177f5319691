// In a file of its own: the kernel's struct tcp_info has more fields than the C library's, and the
// two headers cannot be included together.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

SendProgress ProgressOf(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {.waiting = info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0,
          .unanswered = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 && info.tcpi_snd_wnd > 0,
          .acknowledged = info.tcpi_bytes_acked,
          .received = info.tcpi_bytes_received,
          .segment = info.tcpi_snd_mss,
          .silent_ms = info.tcpi_last_ack_recv};
}

}  // namespace kvxfer::net
