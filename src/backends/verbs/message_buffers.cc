#include "src/backends/verbs/message_buffers.h"

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/memory.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {

MessageBuffers::~MessageBuffers() {
  for (const Page& page : pages_) {
    if (const int error = device_->ibv().DeregMr(page.mr); error != 0) {
      Log(LogLevel::kError, "verbs: device {}: {}", device_->name(),
          ErrnoText("ibv_dereg_mr", error));
    }
  }
}

absl::Status MessageBuffers::AddPage() {
  constexpr size_t kBytes = kBuffersOfPage * kMessageBufferBytes;
  Page page;
  page.memory = NewPages(kBytes);
  if (page.memory == nullptr) return absl::ResourceExhaustedError("verbs: no memory");
  page.mr = device_->Register(page.memory.get(), kBytes, IBV_ACCESS_LOCAL_WRITE);
  if (page.mr == nullptr) {
    const int error = errno;
    return RegistrationError(device_->name(), {.data = page.memory.get(), .bytes = kBytes}, error);
  }
  for (size_t at = 0; at < kBytes; at += kMessageBufferBytes) {
    free_.push_back({.at = page.memory.get() + at, .lkey = page.mr->lkey});
  }
  pages_.push_back(std::move(page));
  return absl::OkStatus();
}

absl::StatusOr<MessageBuffer> MessageBuffers::Take() {
  if (free_.empty()) {
    if (absl::Status status = AddPage(); !status.ok()) return status;
  }
  const MessageBuffer buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace kvxfer::verbs
