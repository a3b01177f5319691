// Texts for people about errors of verbs, with what to do.
//
// Thread-safety: functions without state.

#ifndef KVXFER_BACKENDS_VERBS_ERRORS_H_
#define KVXFER_BACKENDS_VERBS_ERRORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/memory.h"
#include "src/backends/verbs/ibv.h"

namespace kvxfer::verbs {

// "IBV_WC_RETRY_EXC_ERR".
std::string_view StatusName(ibv_wc_status status);
std::string_view EventName(ibv_event_type type);

// The error for a work request that failed. `where` names peer and rail, `operation` says what the
// request was.
absl::Status CompletionError(std::string_view where, uint32_t queue_pair,
                             std::string_view operation, ibv_wc_status status, uint32_t vendor);

// The error for a region that `device` does not take.
absl::Status RegistrationError(std::string_view device, const MemorySpan& span, int error_number);

// What happened in each of the two ways to register GPU memory with a device.
struct GpuRefusal {
  absl::Status no_dmabuf{};                // why there is no dmabuf of it
  std::optional<int> dmabuf_error{};       // of ibv_reg_dmabuf_mr, if it was called
  bool peer_memory = false;                // the module is loaded
  std::optional<int> peer_memory_error{};  // of ibv_reg_mr, if it was called
};

// The error for GPU memory that `device` does not take; `what` names the memory. It has every cause
// and what to do.
absl::Status GpuRegistrationError(std::string_view device, std::string_view what,
                                  const GpuRefusal& refusal);

// The error for a device that does not open.
absl::Status OpenError(std::string_view device, int error_number);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ERRORS_H_
