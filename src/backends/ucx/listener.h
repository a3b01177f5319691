// Where peers connect by socket address: UCX's listener, over a connection manager of its own
// (rdmacm, or TCP).
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_UCX_LISTENER_H_
#define KVXFER_BACKENDS_UCX_LISTENER_H_

#include <ucp/api/ucp.h>

#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kvxfer::ucx {

class Listener {
 public:
  // `text`: UcxOptions::listen. `worker` outlives it. InvalidArgument: not an address that peers
  // can be told. Unavailable: nothing of UCX listens there.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(ucp_worker_h worker,
                                                        const std::string& text);
  // Rejects who waits.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // "10.0.0.2:7471".
  const std::string& address() const { return address_; }

  bool waiting() const { return !waiting_.empty(); }
  // Who has waited longest, to be accepted or rejected; null: nobody.
  ucp_conn_request_h Take();
  void Reject(ucp_conn_request_h request) { ucp_listener_reject(listener_, request); }

 private:
  Listener() = default;
  static void OnRequest(ucp_conn_request_h request, void* self);

  ucp_listener_h listener_ = nullptr;
  std::string address_;
  std::deque<ucp_conn_request_h> waiting_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_LISTENER_H_
