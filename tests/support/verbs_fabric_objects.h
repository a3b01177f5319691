// What the devices of VerbsFabric are made of.
#ifndef KVXFER_TESTS_SUPPORT_VERBS_FABRIC_OBJECTS_H_
#define KVXFER_TESTS_SUPPORT_VERBS_FABRIC_OBJECTS_H_

#include <deque>
#include <optional>
#include <vector>

#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {

struct VerbsFabric::Context : ibv_context {
  Context() : ibv_context{} {}
  int index = 0;
  size_t children = 0;
  std::deque<ibv_async_event> events;
};

struct VerbsFabric::Pd : ibv_pd {
  Pd() : ibv_pd{} {}
  size_t children = 0;
};

struct VerbsFabric::Mr : ibv_mr {
  Mr() : ibv_mr{} {}
  int access = 0;
  bool gpu = false;
  uint64_t gpu_at = 0;  // of its first byte
};

struct VerbsFabric::Channel : ibv_comp_channel {
  Channel() : ibv_comp_channel{} {}
  size_t users = 0;
  std::deque<ibv_cq*> events;
};

struct VerbsFabric::Cq : ibv_cq {
  Cq() : ibv_cq{} {}
  std::deque<ibv_wc> entries;
  size_t users = 0;
  bool armed = false;
};

struct VerbsFabric::Srq : ibv_srq {
  Srq() : ibv_srq{} {}
  std::deque<uint64_t> receives;
  uint32_t most = 0;
  uint32_t limit = 0;
  size_t users = 0;
};

// A send request, with what it points to copied.
struct VerbsFabric::Wqe {
  ibv_send_wr wr{};
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  uint64_t bytes = 0;
  uint64_t done = 0;  // bytes that have moved
  int not_ready = 0;  // how often it found no receive
  bool waits_ack = false;
  bool over = false;  // with `outcome`, of which the initiator hears at `heard`
  ibv_wc_status outcome = IBV_WC_SUCCESS;
  Time heard{};
  Time give_up{};  // set while the peer does not answer
  Time retry_at{};

  bool untouched() const {
    return done == 0 && not_ready == 0 && !waits_ack && !over && give_up == Time{} &&
           retry_at == Time{};
  }
};

// A receive of a queue pair's own.
struct VerbsFabric::Receive {
  uint64_t id = 0;
  ibv_sge sge{};
};

struct VerbsFabric::Qp : ibv_qp {
  Qp() : ibv_qp{} {}
  uint32_t max_receives = 0;  // of its own; 0: it has a shared receive queue
  std::deque<Receive> receives;
  uint32_t max_send = 0;
  uint32_t max_inline = 0;
  int max_sge = 0;
  bool all_signalled = false;
  std::optional<uint64_t> receive;  // in its hands
  Time gives_back{};
  bool last_receive_due = false;
  ibv_qp_attr attr{};
  std::deque<Wqe> requests;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_VERBS_FABRIC_OBJECTS_H_
