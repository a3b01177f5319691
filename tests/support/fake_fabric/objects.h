// The objects behind the fid_* of libfabric. Each is-a fid, so that a pointer to one is a pointer
// to the other; all that belongs to a domain is guarded by that domain's mutex.
#ifndef KVXFER_TESTS_SUPPORT_FAKE_FABRIC_OBJECTS_H_
#define KVXFER_TESTS_SUPPORT_FAKE_FABRIC_OBJECTS_H_

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/fake_fabric/config.h"
#include "tests/support/fake_fabric/wire.h"

namespace fake_fabric {

class Domain;

// What is not there: fills a place of an ops table, whatever its signature.
template <typename Result, typename... Arguments>
Result NotThere(Arguments...) {
  return static_cast<Result>(-FI_ENOSYS);
}

template <typename Object>
Object* From(fid* f) {
  return static_cast<Object*>(reinterpret_cast<typename Object::Fid*>(f));
}

struct Fabric : fid_fabric {
  using Fid = fid_fabric;
  Config config;
  std::atomic<int> users{0};
};

// A room in an endpoint's transmit queue: taken by Post, given back when the completion is read.
using Space = std::shared_ptr<size_t>;

struct Completion {
  void* context = nullptr;
  uint64_t flags = 0;
  size_t bytes = 0;
  void* buffer = nullptr;
  uint64_t data = 0;
  int error = 0;
  size_t left_out = 0;  // bytes that a receive had no room for
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  Space space{};
};

struct Cq : fid_cq {
  using Fid = fid_cq;
  Domain* domain = nullptr;
  fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
  int event = -1;  // eventfd, where FI_WAIT_FD was asked for
  int users = 0;
  std::deque<Completion> ready{};
  std::deque<Completion> failed{};

  void Push(Completion completion);
  void Signal() const;
};

struct Av : fid_av {
  using Fid = fid_av;
  Domain* domain = nullptr;
  int users = 0;
  std::vector<Address> entries{};  // node 0: removed
  std::map<Address, fi_addr_t> indices{};

  const Address* Find(fi_addr_t address) const;
  fi_addr_t IndexOf(const Address& address) const;  // FI_ADDR_NOTAVAIL: it is not there
};

struct Eq : fid_eq {
  using Fid = fid_eq;
  Fabric* fabric = nullptr;
};

struct Endpoint;

struct Region : fid_mr {
  using Fid = fid_mr;
  Domain* domain = nullptr;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t access = 0;
  uint64_t remote_key = 0;  // what a peer names; Fid::key is what the application sees
  uint64_t check = 0;
  Endpoint* endpoint = nullptr;
  bool enabled = false;
  Ticket ticket{};
};

struct Receive {
  void* context = nullptr;
  size_t count = 0;
  std::array<iovec, kMaxIov> iov{};
};

struct Endpoint : fid_ep {
  using Fid = fid_ep;
  Domain* domain = nullptr;
  Address address{};
  Cq* transmit = nullptr;
  Cq* receive = nullptr;
  Av* av = nullptr;
  bool enabled = false;
  bool selective = false;
  bool device_only = false;    // FI_HMEM_P2P_REQUIRED
  uint64_t default_flags = 0;  // of tx_attr.op_flags
  size_t tx_size = 0;
  size_t rx_size = 0;
  Space used{};
  size_t posted = 0;
  std::list<Receive> receives{};
};

// One op of an initiator, until it is answered and its completion is told.
struct Op {
  Request request{};
  Endpoint* endpoint = nullptr;  // null: closed, or nobody waits
  void* context = nullptr;
  uint64_t completion_flags = 0;
  bool wanted = false;    // a completion is
  bool delivery = false;  // and not before the bytes are there
  bool injected = false;  // by a call that has no completion at all
  bool may_fail = false;
  bool completed = false;  // told already, it still moves
  bool sent = false;
  bool doomed = false;  // lands, and is said to have failed
  uint64_t sent_at_us = 0;
  Ticket ticket{};
  std::vector<std::byte> copy{};  // of the source, where the application may have it back early
  Space space{};
};

int OpenDomain(Fabric* fabric, const fi_info* info, fid_domain** out, void* context);
int OpenCq(fid_domain* f, fi_cq_attr* attr, fid_cq** out, void* context);
int OpenAv(fid_domain* f, fi_av_attr* attr, fid_av** out, void* context);
int OpenEndpoint(fid_domain* f, fi_info* info, fid_ep** out, void* context);
int OpenEq(fid_fabric* f, fi_eq_attr* attr, fid_eq** out, void* context);
int TryWait(fid_fabric* fabric, fid** fids, int count);
extern fi_ops_mr region_ops;

}  // namespace fake_fabric

#endif  // KVXFER_TESTS_SUPPORT_FAKE_FABRIC_OBJECTS_H_
