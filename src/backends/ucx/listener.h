// Where peers connect by socket address: UCX's listener, over one of UCX's connection managers
// (rdmacm or TCP).
//
// Thread-safety: none; called by the agent's driver only.

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
  // `text`: UcxOptions::listen. `worker` has to outlive the listener. InvalidArgument: `text` is
  // not an address that peers can be given. Unavailable: UCX cannot listen there.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(ucp_worker_h worker,
                                                        const std::string& text);
  // Rejects the connections that wait.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // "10.0.0.2:7471".
  const std::string& address() const { return address_; }

  bool waiting() const { return !waiting_.empty(); }
  // The connection request that has waited longest, to be accepted or rejected; null: there is
  // none.
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
