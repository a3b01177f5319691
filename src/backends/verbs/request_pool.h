// Where the work requests of one Post are built, chained per rail, until they are posted.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_
#define KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_

#include <cstddef>
#include <memory>

#include "src/backends/verbs/ibv.h"

namespace kvxfer::verbs {

class RequestPool {
 public:
  static constexpr size_t kRequests = 1024;

  RequestPool()
      : requests_(std::make_unique<ibv_send_wr[]>(kRequests)),
        elements_(std::make_unique<ibv_sge[]>(kRequests)) {}

  // Whether there is space for `runs` runs, each of which takes at most one request and one
  // element.
  bool HasSpace(size_t runs) const {
    return kRequests - used_requests_ >= runs && kRequests - used_elements_ >= runs;
  }
  ibv_send_wr& NextRequest() { return requests_[used_requests_++]; }
  ibv_sge& NextElement() { return elements_[used_elements_++]; }
  // Everything was posted.
  void Clear() { used_requests_ = used_elements_ = 0; }

 private:
  const std::unique_ptr<ibv_send_wr[]> requests_;
  const std::unique_ptr<ibv_sge[]> elements_;
  size_t used_requests_ = 0;
  size_t used_elements_ = 0;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REQUEST_POOL_H_
