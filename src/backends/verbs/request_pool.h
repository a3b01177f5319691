// Where the work requests of one op are built, until they are posted.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_
#define KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/backends/verbs/ibv.h"

namespace kvxfer::verbs {

class RequestPool {
 public:
  static constexpr size_t kRequests = 1024;

  RequestPool()
      : requests_(std::make_unique<ibv_send_wr[]>(kRequests)),
        elements_(std::make_unique<ibv_sge[]>(kRequests)) {
    for (size_t i = 0; i + 1 < kRequests; ++i) requests_[i].next = &requests_[i + 1];
  }

  // The `next` of each is the one after it.
  ibv_send_wr* requests() const { return requests_.get(); }
  ibv_sge* elements() const { return elements_.get(); }

 private:
  const std::unique_ptr<ibv_send_wr[]> requests_;
  const std::unique_ptr<ibv_sge[]> elements_;
};

// Builds the requests of one op at the front of a pool. What is adjacent at the peer shares a
// request, gathered.
class RequestBuilder {
 public:
  // `max_inline`: the most bytes that the CPU may copy into a request. `max_sge`: the most elements
  // of a request.
  RequestBuilder(const RequestPool& pool, ibv_wr_opcode opcode, uint64_t id, uint64_t max_inline,
                 uint32_t max_sge)
      : first_(pool.requests()),
        next_(first_),
        element_(pool.elements()),
        opcode_(opcode),
        id_(id),
        max_inline_(max_inline),
        max_sge_(static_cast<int>(max_sge)) {}

  // `by_cpu`: the CPU can read the local memory. At most kRequests calls.
  void Add(uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey, uint64_t bytes,
           bool by_cpu) {
    // The rkey must be equal too: adjacent addresses may lie in two regions or parts.
    if (remote == end_ && rkey == next_[-1].wr.rdma.rkey && next_[-1].num_sge < max_sge_) {
      ++next_[-1].num_sge;
    } else {
      next_->wr_id = id_;
      next_->sg_list = element_;
      next_->num_sge = 1;
      next_->opcode = opcode_;
      next_->wr.rdma.remote_addr = remote;
      next_->wr.rdma.rkey = rkey;
      inlined_ = 0;
      ++next_;
    }
    *element_++ = {.addr = local, .length = static_cast<uint32_t>(bytes), .lkey = lkey};
    end_ = remote + bytes;
    inlined_ += by_cpu ? bytes : kNever;
    next_[-1].send_flags = 0;
    if (inlined_ <= max_inline_) [[unlikely]] {
      next_[-1].send_flags = IBV_SEND_INLINE;
    }
  }
  uint32_t requests() const { return static_cast<uint32_t>(next_ - first_); }

 private:
  static constexpr uint64_t kNowhere = UINT64_MAX;
  static constexpr uint64_t kNever = uint64_t{1} << 32;  // more than any device copies

  ibv_send_wr* const first_;
  ibv_send_wr* next_;
  ibv_sge* element_;
  const ibv_wr_opcode opcode_;
  const uint64_t id_;
  const uint64_t max_inline_;
  const int max_sge_;
  uint64_t end_ = kNowhere;  // of the last request, at the peer
  uint64_t inlined_ = 0;     // bytes of the last request, if the CPU copied them
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_
