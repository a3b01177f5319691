// One end of a reliable connection. Destroying it is synchronous: once Destroy has said OK the
// device neither reads nor writes memory for it, and not before.
//
// Thread-safety: one thread at a time: the backend's owner or, while it is made and connected, one
// of SetupQueue's threads, which never destroys it.

#ifndef KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_
#define KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/options.h"

namespace kvxfer::verbs {

class QueuePair {
 public:
  // In state RESET. `depth` send requests (0 for the side that only answers).
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(Device* device, const LocalPort& port,
                                                           uint32_t depth,
                                                           const VerbsOptions& options);
  // Destroys it where that has not happened; a device that refuses is logged.
  ~QueuePair();

  // What the peer must know.
  const QpAddress& address() const { return address_; }
  uint32_t number() const { return address_.number; }
  ibv_qp* get() { return qp_; }
  Device& device() { return *device_; }
  uint32_t max_inline() const { return max_inline_; }
  // Elements of one request that writes, or that reads.
  uint32_t max_sge(bool read) const { return read ? max_read_sge_ : max_sge_; }

  // To INIT.
  absl::Status Init();
  // Ready to receive from, and unless it only answers to send to, the other end. May block for a
  // second, while the kernel looks for who has that address.
  absl::Status Connect(const QpAddress& to);
  // Nothing that comes in is executed any more, what is posted is flushed.
  void SetError();
  // May be called again where the device refused.
  absl::Status Destroy();

 private:
  QueuePair(Device* device, const LocalPort& port, uint32_t depth, const VerbsOptions& options)
      : device_(device), port_(port), sends_(depth > 0), options_(options) {}
  absl::Status Modify(ibv_qp_attr& attr, int mask, const char* to);

  Device* const device_;
  const LocalPort port_;
  const bool sends_;
  const VerbsOptions options_;
  ibv_qp* qp_ = nullptr;
  QpAddress address_;
  uint32_t max_inline_ = 0;
  uint32_t max_sge_ = 1;
  uint32_t max_read_sge_ = 1;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_
