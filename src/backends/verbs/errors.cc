#include "src/backends/verbs/errors.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

struct Meaning {
  ibv_wc_status status;
  std::string_view name;
  absl::StatusCode code;
  std::string_view remedy;
};

using Code = absl::StatusCode;

constexpr std::array kMeanings = {
    Meaning{IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR", Code::kInternal,
            "a request is longer than the queue pair takes"},
    // Soft-RoCE also reports this for a link that went down.
    Meaning{IBV_WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR", Code::kUnavailable,
            "the device did not accept the request; is its link up?"},
    Meaning{IBV_WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR", Code::kFailedPrecondition,
            "the local memory is not registered any more: was it freed or deregistered?"},
    Meaning{IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR", Code::kUnavailable,
            "the queue pair went into error before its turn came"},
    Meaning{IBV_WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR", Code::kInternal,
            "the peer's device answered what makes no sense; look at its firmware"},
    Meaning{IBV_WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR", Code::kFailedPrecondition,
            "the local memory does not allow it"},
    Meaning{IBV_WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR", Code::kInternal,
            "the peer's device refused the request"},
    Meaning{
        IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", Code::kPermissionDenied,
        "the peer's device refused the key, the range or the right: the region was deregistered "
        "there, or the metadata is old; take it again"},
    Meaning{IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", Code::kUnavailable,
            "the peer's device failed; look at its kernel log"},
    Meaning{
        IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR", Code::kUnavailable,
        "the peer's device did not answer: its port, the cable or the path is down, or the time "
        "is too short (KVXFER_VERBS_TIMEOUT, KVXFER_VERBS_RETRY_COUNT)"},
    Meaning{IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR", Code::kUnavailable,
            "the peer has no receives posted: it does not make progress"},
    Meaning{IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", Code::kUnavailable,
            "the device failed; look at the kernel log"},
    Meaning{IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", Code::kUnavailable,
            "the peer's device did not answer in time"},
    Meaning{IBV_WC_GENERAL_ERR, "IBV_WC_GENERAL_ERR", Code::kInternal,
            "the device gives no reason; look at the kernel log"},
};

struct GpuRemedy {
  int error;
  absl::StatusCode code;
  std::string_view text;
};

// The first two rows stand for all errors without a row of their own: the first if the module is
// not loaded (also if no call was made, because neither way was available), the second if it is.
constexpr std::array kGpuRemedies = {
    GpuRemedy{
        0, Code::kFailedPrecondition,
        "load the module (modprobe nvidia-peermem), or use the GPU driver's open kernel "
        "modules (515 or newer) with Linux 5.12 or newer and a NIC driver that takes dmabufs"},
    // EFAULT is the usual error of these, whatever the cause: the kernel then tried to pin the
    // address as host memory.
    GpuRemedy{EFAULT, Code::kFailedPrecondition,
              "likely, in this order: the GPU's BAR1 is full (nvidia-smi -q -d MEMORY: register "
              "less, or switch on resizable BAR); nvidia-peermem does not fit the NIC's driver (it "
              "needs the ib_core of MLNX_OFED or DOCA-OFED; after installing one: modprobe -r "
              "nvidia-peermem; modprobe nvidia-peermem; dmesg); or use dmabuf: the GPU driver's "
              "open kernel modules, Linux 5.12 or newer"},
    GpuRemedy{ENOMEM, Code::kResourceExhausted,
              "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY shows it: register less, or use a "
              "GPU whose BAR is as large as its memory), or the limit of locked memory is too low "
              "(ulimit -l unlimited, in a pod the capability IPC_LOCK)"},
    GpuRemedy{EPERM, Code::kPermissionDenied,
              "the capability IPC_LOCK is missing, or the driver forbids it in this container"},
};

// `by_module`: nvidia-peermem was tried.
const GpuRemedy& RemedyFor(int error, bool by_module) {
  if (error == EAGAIN) error = ENOMEM;
  if (error == EACCES) error = EPERM;
  if (error != ENOMEM && error != EPERM) error = by_module ? EFAULT : 0;
  return *std::ranges::find(kGpuRemedies, error, &GpuRemedy::error);
}

const Meaning* Find(ibv_wc_status status) {
  for (const Meaning& meaning : kMeanings) {
    if (meaning.status == status) return &meaning;
  }
  return nullptr;
}

}  // namespace

std::string_view StatusName(ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS) return "IBV_WC_SUCCESS";
  const Meaning* const meaning = Find(status);
  return meaning == nullptr ? "an unknown status" : meaning->name;
}

std::string_view EventName(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "a completion queue failed";
    case IBV_EVENT_QP_FATAL:
      return "the queue pair failed";
    case IBV_EVENT_QP_REQ_ERR:
      return "the queue pair got a request that makes no sense";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "the queue pair got a request for memory that the peer must not touch";
    case IBV_EVENT_PORT_ACTIVE:
      return "the port came up";
    case IBV_EVENT_PORT_ERR:
      return "the port went down";
    case IBV_EVENT_LID_CHANGE:
      return "the port's LID changed";
    case IBV_EVENT_PKEY_CHANGE:
      return "the port's P_Key table changed";
    case IBV_EVENT_SM_CHANGE:
      return "another subnet manager took over";
    case IBV_EVENT_GID_CHANGE:
      return "the port's GID table changed";
    case IBV_EVENT_SRQ_ERR:
      return "the shared receive queue failed";
    case IBV_EVENT_DEVICE_FATAL:
      return "the device failed";
    default:
      return "something else";
  }
}

absl::Status CompletionError(std::string_view where, uint32_t queue_pair,
                             std::string_view operation, ibv_wc_status status, uint32_t vendor) {
  const Meaning* const meaning = Find(status);
  const absl::StatusCode code = meaning == nullptr ? Code::kInternal : meaning->code;
  return absl::Status(
      code, absl::StrCat(ToAbsl(where), ", queue pair ", queue_pair, ": ", ToAbsl(operation),
                         " ended with ", ToAbsl(StatusName(status)), " (", static_cast<int>(status),
                         ", vendor error 0x", absl::Hex(vendor),
                         "): ", meaning == nullptr ? "" : ToAbsl(meaning->remedy)));
}

absl::Status RegistrationError(std::string_view device, const MemorySpan& span, int error_number) {
  const std::string what =
      absl::StrCat("verbs: registering ", span.bytes, " bytes at 0x",
                   absl::Hex(reinterpret_cast<uintptr_t>(span.data)), " with ", ToAbsl(device),
                   ": ", ErrnoText("ibv_reg_mr", error_number));
  switch (error_number) {
    case ENOMEM:
    case EAGAIN:
      return absl::ResourceExhaustedError(absl::StrCat(
          what,
          "; the limit of locked memory may be too low (ulimit -l, LimitMEMLOCK=, in a pod "
          "the capability IPC_LOCK): set it to unlimited"));
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat(what,
                       "; the memory is mapped without the right to write, or the capability "
                       "IPC_LOCK is missing"));
    case EFAULT:
      return absl::InvalidArgumentError(absl::StrCat(
          what,
          "; not all of it is mapped memory that can be pinned: was it freed, or is it a "
          "file or device mapping?"));
    default:
      return absl::UnavailableError(what);
  }
}

absl::Status GpuRegistrationError(std::string_view device, std::string_view what,
                                  const GpuRefusal& refusal) {
  const std::string dmabuf = refusal.dmabuf_error
                                 ? ErrnoText("ibv_reg_dmabuf_mr", *refusal.dmabuf_error)
                                 : std::string(refusal.no_dmabuf.message());
  const std::string peer_memory = !refusal.peer_memory ? std::string("the module is not loaded")
                                  : refusal.peer_memory_error
                                      ? ErrnoText("ibv_reg_mr", *refusal.peer_memory_error)
                                      : std::string("not tried");
  // The last attempt says most, except that ENOMEM always wins.
  const int last = refusal.peer_memory_error.value_or(refusal.dmabuf_error.value_or(0));
  const int error = refusal.dmabuf_error == ENOMEM ? ENOMEM : last;
  const GpuRemedy& remedy = RemedyFor(error, refusal.peer_memory_error.has_value());
  return absl::Status(
      remedy.code, absl::StrCat("verbs: GPU memory cannot be given to ", ToAbsl(device), ": ",
                                ToAbsl(what), ": as dmabuf: ", dmabuf,
                                "; by nvidia-peermem: ", peer_memory, "; ", ToAbsl(remedy.text)));
}

absl::Status OpenError(std::string_view device, int error_number) {
  const std::string what =
      absl::StrCat("opening ", ToAbsl(device), ": ", ErrnoText("ibv_open_device", error_number));
  if (error_number == EACCES || error_number == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat(
        what,
        "; this user may not open /dev/infiniband/uverbs*: give it the right, or the pod the "
        "device"));
  }
  return absl::UnavailableError(
      absl::StrCat(what, "; look whether the driver is loaded and ibv_devinfo shows the device"));
}

}  // namespace kvxfer::verbs
