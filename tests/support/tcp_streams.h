// The sockets of the tcp backend in this process, found from outside: tests break them as networks
// do.
#ifndef KVXFER_TESTS_SUPPORT_TCP_STREAMS_H_
#define KVXFER_TESTS_SUPPORT_TCP_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvxfer::testing {

// One end of a data stream.
struct StreamEnd {
  int fd = -1;
  std::string local;  // "127.0.0.1:4711"
  std::string peer;
};

// Both ends of every data stream that is connected, where both are in this process. Nobody may open
// or close one meanwhile.
std::vector<StreamEnd> DataStreams();

// Both ends of one of them.
std::vector<StreamEnd> OneDataStream();

// From now on nothing that comes to these ends is seen, not even by the kernel: no byte, no
// acknowledgement, no end.
void Blackhole(const std::vector<StreamEnd>& ends);

// Connections that are accepted at `port` from now on do not see packets with more than `most`
// bytes, as where a path takes only small ones and does not say so.
void PassOnlySmall(uint16_t port, uint32_t most);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TCP_STREAMS_H_
