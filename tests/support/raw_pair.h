// An end of a control pair of the verbs backend that is no backend: over device i0 of a
// VerbsFabric.
#ifndef KVXFER_TESTS_SUPPORT_RAW_PAIR_H_
#define KVXFER_TESTS_SUPPORT_RAW_PAIR_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/message_parts.h"

namespace kvxfer::testing {

// A queue pair by itself, whose SENDs a test writes.
class RawPair {
 public:
  explicit RawPair(std::unique_ptr<verbs::Ibv> ibv) : ibv_(std::move(ibv)) {
    context_ = ibv_->Open("i0");
    pd_ = ibv_->AllocPd(context_);
    cq_ = ibv_->CreateCq(context_, 256, nullptr, nullptr);
    memory_.resize(kMemory);
    mr_ = ibv_->RegMr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq_;
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = 128;
    attr.cap.max_recv_wr = 64;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    qp_ = ibv_->CreateQp(pd_, &attr);
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    EXPECT_EQ(ibv_->ModifyQp(qp_, &init, IBV_QP_STATE), 0);
    // What comes is not read.
    for (int i = 0; i < 64; ++i) {
      ibv_sge element{.addr = reinterpret_cast<uint64_t>(memory_.data()),
                      .length = verbs::kMessageBufferBytes,
                      .lkey = mr_->lkey};
      ibv_recv_wr request{};
      request.sg_list = &element;
      request.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      EXPECT_EQ(ibv_->PostRecv(qp_, &request, &bad), 0);
    }
  }
  ~RawPair() {
    ibv_->DestroyQp(qp_);
    ibv_->DeregMr(mr_);
    ibv_->DestroyCq(cq_);
    ibv_->DeallocPd(pd_);
    ibv_->Close(context_);
  }
  uint32_t number() const { return qp_->qp_num; }
  void Connect(const verbs::QpAddress& to) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.dest_qp_num = to.number;
    attr.rq_psn = to.psn;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = 5;
    std::memcpy(attr.ah_attr.grh.dgid.raw, to.port.gid.data(), to.port.gid.size());
    ASSERT_EQ(ibv_->ModifyQp(qp_, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = kPsn;
    attr.rnr_retry = 7;
    ASSERT_EQ(ibv_->ModifyQp(qp_, &attr, IBV_QP_STATE), 0);
  }
  void Send(std::string_view bytes) {
    ASSERT_LE(bytes.size(), kMemory);
    // The device may still read what was sent before.
    if (next_ + bytes.size() > kMemory) next_ = 0;
    std::byte* const at = &memory_[next_];
    next_ += bytes.size();
    std::memcpy(at, bytes.data(), bytes.size());
    ibv_sge element{.addr = reinterpret_cast<uint64_t>(at),
                    .length = static_cast<uint32_t>(bytes.size()),
                    .lkey = mr_->lkey};
    ibv_send_wr request{};
    request.sg_list = &element;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_->PostSend(qp_, &request, &bad), 0);
  }
  // SENDs that are over, whichever way.
  size_t Ended() {
    std::array<ibv_wc, 16> entries;
    const int n = ibv_->PollCq(cq_, 16, entries.data());
    for (int i = 0; i < n; ++i) {
      ended_ += entries[static_cast<size_t>(i)].opcode == IBV_WC_RECV ? 0 : 1;
    }
    return ended_;
  }
  static constexpr uint32_t kPsn = 77;

 private:
  static constexpr size_t kMemory = 2 * verbs::kMessageBufferBytes;
  const std::unique_ptr<verbs::Ibv> ibv_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  std::vector<std::byte> memory_;
  size_t next_ = 0;  // where the next SEND's bytes lie
  size_t ended_ = 0;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_RAW_PAIR_H_
