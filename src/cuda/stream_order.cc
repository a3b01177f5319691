#include "src/cuda/stream_order.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/cuda/app_stream.h"
#include "src/cuda/event_pool.h"

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

absl::StatusOr<std::shared_ptr<StreamPoint>> StreamPoint::Take(
    const std::optional<CudaStream>& stream, uint64_t event) {
  if (!stream.has_value() && event == 0) return nullptr;
  auto point = stream.has_value() ? Record(*stream) : InUse();
  if (!point.ok() || event == 0) return point;
  if (auto status = (*point)->Adopt(event); !status.ok()) return status;
  return point;
}

absl::StatusOr<std::shared_ptr<StreamPoint>> StreamPoint::Record(const CudaStream& stream) {
  static std::atomic<uint64_t> last_number{0};
  const AppStream open(stream);
  if (!open.status().ok()) return open.status();
  const int device = open.device().ordinal;
  const auto event = EventPool::Get().Take(open.driver(), device);
  if (!event.ok()) return event.status();
  const CUresult recorded = open.driver().calls().cuEventRecord(*event, open.handle());
  if (recorded != CUDA_SUCCESS) {
    EventPool::Get().Discard(open.driver(), device, *event);
    return open.Error(recorded, "cuEventRecord");
  }
  std::shared_ptr<StreamPoint> point(new StreamPoint(open.driver(), device));
  point->own_ = *event;
  // Numbered after recording. Points that different threads record in one stream at the same time
  // may be numbered in the other order, which only delays the report.
  point->stream_ = open.key();
  point->number_ = ++last_number;
  return point;
}

absl::StatusOr<std::shared_ptr<StreamPoint>> StreamPoint::InUse() {
  const auto driver = Driver::Get();
  if (!driver.ok()) return driver.status();
  const auto device = SomeDeviceInUse(**driver);
  if (!device.ok()) return device.status();
  return std::shared_ptr<StreamPoint>(new StreamPoint(**driver, *device));
}

// Queried at once, so that an invalid event is reported to the caller.
absl::Status StreamPoint::Adopt(uint64_t event) {
  const ContextScope scope(driver_, device_);
  if (!scope.status().ok()) return scope.status();
  const auto handle = reinterpret_cast<CUevent>(event);
  const CUresult asked = driver_.calls().cuEventQuery(handle);
  if (asked == CUDA_ERROR_NOT_READY) other_ = handle;
  if (asked == CUDA_ERROR_NOT_READY || asked == CUDA_SUCCESS) return absl::OkStatus();
  absl::Status why = driver_.Error(asked, "cuEventQuery");
  if (asked != CUDA_ERROR_INVALID_HANDLE && asked != CUDA_ERROR_INVALID_VALUE &&
      asked != CUDA_ERROR_CAPTURED_EVENT) {
    return why;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("CUDA event 0x", absl::Hex(event),
                   " cannot be waited for: it must be of this process, not destroyed, and recorded "
                   "outside of any graph (",
                   why.message(), ")"));
}

StreamPoint::~StreamPoint() {
  // In a forked child the CUDA driver does not work: leak the event.
  if (own_ != nullptr && process_ == getpid()) ReturnOwn();
}

void StreamPoint::ReturnOwn() {
  EventPool::Get().Return(driver_, device_, std::exchange(own_, nullptr));
}

// Queries the events that are left and drops those that are over.
absl::Status StreamPoint::Ask() {
  const ContextScope scope(driver_, device_);
  if (!scope.status().ok()) return scope.status();
  for (CUevent* const event : {&own_, &other_}) {
    if (*event == nullptr) continue;
    const CUresult result = driver_.calls().cuEventQuery(*event);
    if (result == CUDA_ERROR_NOT_READY) return absl::OkStatus();
    if (result != CUDA_SUCCESS) {
      return Annotate(driver_.Error(result, "cuEventQuery"), "the CUDA event that it waits for");
    }
    if (event == &own_) {
      ReturnOwn();
    } else {
      other_ = nullptr;
    }
  }
  return absl::OkStatus();
}

void PointPoll::BeginRound(Time now) {
  now_ = now;
  next_ = Time::max();
  fronts_.clear();
}

absl::StatusOr<bool> PointPoll::Passed(StreamPoint& point) {
  if (point.passed()) return true;
  // An earlier point in the same CUDA stream is not passed, so this one is not either: no query
  // needed.
  const bool behind = point.own_ != nullptr && point.stream_ != 0 &&
                      std::ranges::any_of(fronts_, [&](const Front& front) {
                        return front.device == point.device_ && front.stream == point.stream_ &&
                               front.number <= point.number_;
                      });
  if (behind) return false;
  if (point.ask_again_ <= now_) {
    if (auto status = point.Ask(); !status.ok()) return status;
    if (point.passed()) return true;
    point.ask_again_ = now_ + std::min<Duration>(kOften + (now_ - point.made_) / 16, kSeldom);
  }
  next_ = std::min(next_, point.ask_again_);
  if (point.own_ != nullptr && point.stream_ != 0) {
    fronts_.push_back({.device = point.device_, .stream = point.stream_, .number = point.number_});
  }
  return false;
}

}  // namespace kvxfer::cuda
