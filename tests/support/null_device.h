// An RDMA device that is done with a request as soon as it is posted, and moves nothing but single
// words, which are what a rail says by itself: the seam of the verbs backend
// (src/backends/verbs/ibv.h) where only what happens above it is to be measured. What it is asked
// for is counted.
//
// All devices of a process are on one wire. Thread-safety: all of it, from any thread.

#ifndef KVXFER_TESTS_SUPPORT_NULL_DEVICE_H_
#define KVXFER_TESTS_SUPPORT_NULL_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer::testing {

// Of all null devices of the process, since it began.
struct DeviceCounts {
  uint64_t doorbells = 0;          // calls of ibv_post_send
  uint64_t requests = 0;           // in them
  uint64_t elements = 0;           // scatter-gather elements of those
  uint64_t send_entries = 0;       // completions at the side that posted
  uint64_t receive_entries = 0;    // and at the other
  uint64_t receives_posted = 0;    // by ibv_post_srq_recv
  uint64_t receive_doorbells = 0;  // its calls

  DeviceCounts operator-(const DeviceCounts& before) const;
};
DeviceCounts CountsOfNullDevices();

// For internal::AgentFactory: the verbs backend over one null device.
absl::StatusOr<std::unique_ptr<Backend>> MakeNullVerbs(std::string_view name,
                                                       const BackendContext& context);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_NULL_DEVICE_H_
