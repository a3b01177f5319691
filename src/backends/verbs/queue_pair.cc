#include "src/backends/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

constexpr uint32_t kMaxSge = 8;
constexpr uint8_t kRnrWithoutEnd = 7;  // no limit: the transfer's deadline is the limit
// A queue pair with receives of its own: nobody sends to it without one, so their lack is an error,
// which has to show.
constexpr uint8_t kRnrOfOwn = 6;
constexpr uint8_t kMaxReads = 16;
constexpr uint8_t kHopLimit = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(Device* device, const LocalPort& port,
                                                             const QueueDepths& depths,
                                                             const VerbsOptions& options) {
  std::unique_ptr<QueuePair> pair(new QueuePair(device, port, depths, options));
  const uint32_t depth = depths.sends;
  ibv_qp_init_attr attr{};
  attr.send_cq = device->send_cq();
  if (depths.receives == 0) {
    attr.recv_cq = device->receive_cq();
    attr.srq = device->srq();
  } else {
    attr.recv_cq = device->send_cq();
    attr.cap.max_recv_wr = depths.receives;
    attr.cap.max_recv_sge = 1;
  }
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = std::max(depth, 1u);
  attr.cap.max_send_sge =
      // A side that only answers posts no sends, so it needs no elements.
      std::clamp(static_cast<uint32_t>(device->attr().max_sge), 1u, depth == 0 ? 1u : kMaxSge);
  attr.cap.max_inline_data = depth == 0 ? 0 : options.max_inline;
  const ibv_qp_cap wanted = attr.cap;
  pair->qp_ = device->ibv().CreateQp(device->pd(), &attr);
  if (pair->qp_ == nullptr && wanted.max_inline_data != 0) {
    // Devices do not report how much inline data they take, so try without.
    attr.cap = wanted;
    attr.cap.max_inline_data = 0;
    pair->qp_ = device->ibv().CreateQp(device->pd(), &attr);
  }
  if (pair->qp_ == nullptr) {
    const int error = errno;
    return absl::UnavailableError(absl::StrCat(
        port.info.name, ": ", ErrnoText("ibv_create_qp", error),
        error == ENOMEM ? "; set a smaller `verbs.queue_depth` (KVXFER_VERBS_QUEUE_DEPTH)" : ""));
  }
  pair->max_inline_ = std::min(attr.cap.max_inline_data, wanted.max_inline_data);
  pair->max_sge_ = std::clamp(attr.cap.max_send_sge, 1u, kMaxSge);
  pair->max_read_sge_ =
      std::clamp(static_cast<uint32_t>(device->attr().max_sge_rd), 1u, pair->max_sge_);
  pair->address_ = {
      .number = pair->qp_->qp_num,
      .psn = RandomNonZero32() & 0xff'ffff,
      .reads = static_cast<uint8_t>(std::clamp(device->attr().max_qp_rd_atom, 1, int{kMaxReads})),
      .port = port.info};
  return pair;
}

QueuePair::~QueuePair() {
  const absl::Status status = Destroy();
  if (!status.ok()) {
    Log(LogLevel::kError, "verbs: a queue pair is not destroyed: {}", ToStd(status.message()));
  }
}

absl::Status QueuePair::Destroy() {
  if (qp_ == nullptr) return absl::OkStatus();
  if (const int error = device_->ibv().DestroyQp(qp_); error != 0) {
    return absl::UnavailableError(absl::StrCat(port_.info.name, ", queue pair ", address_.number,
                                               ": ", ErrnoText("ibv_destroy_qp", error)));
  }
  qp_ = nullptr;
  return absl::OkStatus();
}

absl::Status QueuePair::Init() {
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = port_.pkey_index;
  init.port_num = port_.number;
  // No peer writes to or reads from the side that connected, nor from a side that takes SENDs.
  init.qp_access_flags = sends() ? 0 : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return Modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

absl::Status QueuePair::Modify(ibv_qp_attr& attr, int mask, const char* to) {
  const int error = device_->ibv().ModifyQp(qp_, &attr, mask);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(port_.info.name, ", queue pair ", address_.number,
                                             ": ", ErrnoText("ibv_modify_qp", error), " to ", to));
}

absl::Status QueuePair::Connect(const QpAddress& to) {
  const bool roce = port_.info.link_layer == IBV_LINK_LAYER_ETHERNET;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min(port_.info.mtu, to.port.mtu));
  attr.dest_qp_num = to.number;
  attr.rq_psn = to.psn;
  attr.max_dest_rd_atomic = address_.reads;
  attr.min_rnr_timer = static_cast<uint8_t>(options_.rnr_timer);
  attr.ah_attr.sl = static_cast<uint8_t>(options_.service_level);
  attr.ah_attr.port_num = port_.number;
  attr.ah_attr.dlid = to.port.lid;
  // A GRH is always needed on RoCE; on InfiniBand if the subnet manager requires it, or if the peer
  // has no LID here.
  const bool other_subnet =
      !std::equal(to.port.gid.begin(), to.port.gid.begin() + 8, port_.info.gid.begin());
  if (roce || port_.needs_grh || to.port.lid == 0 || other_subnet) {
    attr.ah_attr.is_global = 1;
    std::memcpy(attr.ah_attr.grh.dgid.raw, to.port.gid.data(), to.port.gid.size());
    attr.ah_attr.grh.sgid_index = port_.gid_index;
    attr.ah_attr.grh.hop_limit = kHopLimit;
    attr.ah_attr.grh.traffic_class = static_cast<uint8_t>(options_.traffic_class);
  }
  absl::Status status = Modify(attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                               "RTR");
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("towards ", to.port.name, " (", ToString(to.port.gid),
                                         ", LID ", to.port.lid, ")"));
  }
  if (!sends()) return absl::OkStatus();
  ibv_qp_attr rts{};
  rts.qp_state = IBV_QPS_RTS;
  rts.timeout = static_cast<uint8_t>(options_.timeout);
  rts.retry_cnt = static_cast<uint8_t>(options_.retry_count);
  rts.rnr_retry = depths_.receives == 0 ? kRnrWithoutEnd : kRnrOfOwn;
  // The smaller of both sides' limits: more reads in flight than the peer serves would break the
  // connection.
  rts.sq_psn = address_.psn;
  rts.max_rd_atomic = static_cast<uint8_t>(
      std::clamp(std::min(device_->attr().max_qp_init_rd_atom, int{to.reads}), 1, int{kMaxReads}));
  return Modify(rts,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

void QueuePair::SetError() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const absl::Status status = Modify(attr, IBV_QP_STATE, "error");
  if (!status.ok()) {
    Log(LogLevel::kWarning, "verbs: a queue pair is not set to its error state: {}",
        std::string_view(status.message().data(), status.message().size()));
  }
}

}  // namespace kvxfer::verbs
