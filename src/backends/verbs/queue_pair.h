// One end of a reliable connection. Destroying it is synchronous: afterwards the device neither
// reads nor writes memory for it.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_
#define KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/options.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/device.h"

namespace kvxfer::verbs {

class QueuePair {
 public:
  // In state INIT. `depth` send requests (0 for the side that only answers).
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(Device* device, const LocalPort& port,
                                                           uint32_t depth,
                                                           const VerbsOptions& options);
  ~QueuePair();

  // What the peer must know.
  const QpAddress& address() const { return address_; }
  uint32_t number() const { return address_.number; }
  ibv_qp* get() { return qp_; }
  Device& device() { return *device_; }
  uint32_t max_inline() const { return max_inline_; }
  uint32_t max_sge() const { return max_sge_; }

  // Ready to receive from, and with `sends` to send to, the other end.
  absl::Status Connect(const QpAddress& to, bool sends);
  // Nothing that comes in is executed any more, what is posted is flushed.
  void SetError();

 private:
  QueuePair(Device* device, const LocalPort& port, const VerbsOptions& options)
      : device_(device), port_(port), options_(options) {}
  absl::Status Modify(ibv_qp_attr& attr, int mask, const char* to);

  Device* const device_;
  const LocalPort port_;
  const VerbsOptions options_;
  ibv_qp* qp_ = nullptr;
  QpAddress address_;
  uint32_t max_inline_ = 0;
  uint32_t max_sge_ = 1;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_
