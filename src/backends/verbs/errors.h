// What verbs tell, in words: for a person, with the remedy.
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

// A work request that failed. `where` names peer and rail, `operation` what it was.
absl::Status CompletionError(std::string_view where, uint32_t queue_pair,
                             std::string_view operation, ibv_wc_status status, uint32_t vendor);

// A region that `device` does not take.
absl::Status RegistrationError(std::string_view device, const MemorySpan& span, int error_number);

// What became of the two ways by which a device may be given GPU memory.
struct GpuRefusal {
  absl::Status no_dmabuf{};                // why there is no dmabuf of it
  std::optional<int> dmabuf_error{};       // of ibv_reg_dmabuf_mr, where there is one
  bool peer_memory = false;                // the module is loaded
  std::optional<int> peer_memory_error{};  // of ibv_reg_mr, where it is
};

// GPU memory that `device` does not take; `what` names it. Every cause, and the remedy.
absl::Status GpuRegistrationError(std::string_view device, std::string_view what,
                                  const GpuRefusal& refusal);

// A device that does not open.
absl::Status OpenError(std::string_view device, int error_number);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ERRORS_H_
