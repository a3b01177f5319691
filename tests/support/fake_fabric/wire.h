// What domains say to each other, over datagram sockets of the host: the kernel hands a datagram
// over whole or not at all, wherever a process was stopped or killed, and refuses it once the other
// side is gone. Only descriptions travel there; bytes are read out of the memory of who has them
// (process_vm_readv). Nobody writes into another process, so nobody can do it late.
#ifndef KVXFER_TESTS_SUPPORT_FAKE_FABRIC_WIRE_H_
#define KVXFER_TESTS_SUPPORT_FAKE_FABRIC_WIRE_H_

#include <sys/types.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace fake_fabric {

// Of an endpoint, 32 bytes as EFA's: where (16 bytes there too), queue pair, random key. An
// endpoint's address means nothing once it is closed: its key does not come back.
struct Address {
  uint64_t node = 0;  // random; names a domain's socket
  uint64_t reserved = 0;
  uint16_t qpn = 0;
  uint16_t pad = 0;
  uint32_t qkey = 0;
  uint64_t next = 0;

  auto operator<=>(const Address&) const = default;
};
static_assert(sizeof(Address) == 32);

enum class Kind : uint32_t { kWrite, kRead, kSend };

// Names a word in its owner's memory that has `value` for as long as what it stands for is there:
// the source of an op, a memory region. Whoever reads bytes of another process reads the word after
// them, by the same call.
struct TicketName {
  uint64_t at = 0;
  uint64_t value = 0;
};

inline constexpr size_t kMaxIov = 4;

struct LocalPiece {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct RemotePiece {
  uint64_t address = 0;  // or an offset, where FI_MR_VIRT_ADDR is not set
  uint64_t bytes = 0;
  uint64_t key = 0;
  uint64_t check = 0;  // the rest of a raw key
};

struct Request {
  uint64_t op = 0;
  Kind kind = Kind::kWrite;
  uint16_t local_count = 0;
  uint16_t remote_count = 0;
  pid_t pid = 0;
  uint32_t has_data = 0;
  uint64_t data = 0;
  uint64_t bytes = 0;
  uint64_t hold_us = 0;  // how long the fabric keeps it
  Address from{};
  Address to{};
  TicketName source{};
  std::array<LocalPiece, kMaxIov> local{};
  std::array<RemotePiece, kMaxIov> remote{};
};

// Answers a Request. A read's says where the bytes are: the initiator fetches them.
struct Reply {
  uint64_t op = 0;
  int32_t error = 0;
  pid_t pid = 0;
  uint64_t count = 0;
  std::array<LocalPiece, kMaxIov> pieces{};
  std::array<TicketName, kMaxIov> tickets{};
};

enum class Packet : uint64_t { kRequests, kReplies, kProbe };
inline constexpr size_t kBatch = 32;
inline constexpr size_t kMaxDatagram = sizeof(Packet) + kBatch * sizeof(Request);

enum class SendResult : uint8_t { kSent, kFull, kGone };

// A domain's socket. Non-blocking.
class Wire {
 public:
  Wire();
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  uint64_t node() const { return node_; }
  int fd() const { return fd_; }  // -1: there is none, errno says why
  SendResult Send(uint64_t node, const void* datagram, size_t bytes) const;
  // 0: nothing is there.
  size_t Receive(void* datagram, size_t space) const;

 private:
  uint64_t node_;
  int fd_;
};

// From the kernel, never from a seed: two processes must not have the same.
uint64_t TrulyRandom();

// The words that TicketName names. They outlive everything but the library.
class Ticket {
 public:
  Ticket();
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // False: too many at once.
  bool valid() const { return name_.at != 0; }
  const TicketName& name() const { return name_; }

 private:
  TicketName name_;
};

// 0, or an errno: ESRCH the process is gone, EFAULT no such memory, ECANCELED the ticket is void.
int Fetch(pid_t pid, void* to, uint64_t from, size_t bytes, const TicketName& ticket);
// Into this process, where there may be no memory any more; without the sanitizers' knowing, as a
// device does. 0 or an errno.
int Land(uint64_t to, const void* from, size_t bytes);

}  // namespace fake_fabric

#endif  // KVXFER_TESTS_SUPPORT_FAKE_FABRIC_WIRE_H_
