// One end of a reliable connection. Destroying it is synchronous: once Destroy has returned OK, and
// not before, the device neither reads nor writes memory for it.
//
// Thread-safety: one thread at a time: the driver's, or, while the queue pair is made and
// connected, one of SetupQueue's threads, which never destroys it.

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

// How many requests it takes.
struct QueueDepths {
  uint32_t sends = 0;     // 0: the side of a rail that only answers
  uint32_t receives = 0;  // of its own; 0: immediates take receives of the device's shared queue
};

class QueuePair {
 public:
  // In state RESET. With receives of its own all its completions go to the device's send completion
  // queue, and the peer can only SEND.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(Device* device, const LocalPort& port,
                                                           const QueueDepths& depths,
                                                           const VerbsOptions& options);
  // Destroys the queue pair unless that has happened; a refusal by the device is logged.
  ~QueuePair();

  // What the peer needs to know.
  const QpAddress& address() const { return address_; }
  uint32_t number() const { return address_.number; }
  ibv_qp* get() { return qp_; }
  Device& device() { return *device_; }
  uint32_t max_inline() const { return max_inline_; }
  // The most elements of one request that writes, or that reads.
  uint32_t max_sge(bool read) const { return read ? max_read_sge_ : max_sge_; }

  // To state INIT.
  absl::Status Init();
  // Makes it ready to receive from the other end and, unless it only answers, to send to it. May
  // block for a second, while the kernel resolves the peer's address.
  absl::Status Connect(const QpAddress& to);
  // To the error state: nothing that arrives is executed from now on, and what is posted is
  // flushed.
  void SetError();
  // May be called again if the device refused.
  absl::Status Destroy();

 private:
  QueuePair(Device* device, const LocalPort& port, const QueueDepths& depths,
            const VerbsOptions& options)
      : device_(device), port_(port), depths_(depths), options_(options) {}
  bool sends() const { return depths_.sends > 0; }
  absl::Status Modify(ibv_qp_attr& attr, int mask, const char* to);

  Device* const device_;
  const LocalPort port_;
  const QueueDepths depths_;
  const VerbsOptions options_;
  ibv_qp* qp_ = nullptr;
  QpAddress address_;
  uint32_t max_inline_ = 0;
  uint32_t max_sge_ = 1;
  uint32_t max_read_sge_ = 1;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_QUEUE_PAIR_H_
