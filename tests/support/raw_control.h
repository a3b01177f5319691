// A peer of a verbs backend that is no backend: a control connection whose frames a test writes.
//
// Never blocks; whoever is at the other end takes its turns between two calls.
#ifndef KVXFER_TESTS_SUPPORT_RAW_CONTROL_H_
#define KVXFER_TESTS_SUPPORT_RAW_CONTROL_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/backends/verbs/blobs.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::testing {

class RawControl {
 public:
  // Connects to where a backend's Address says, and says what it has to say first.
  static absl::StatusOr<std::unique_ptr<RawControl>> Dial(std::string_view address);

  // False: the connection takes no more, now or ever.
  bool Say(const verbs::Blob& blob);
  bool Say(net::ControlKind kind, std::span<const std::byte> payload);
  // Reads what there is. False: the connection is over.
  bool Listen();

  bool welcomed() const { return welcomed_; }
  const std::vector<verbs::Blob>& heard() const { return heard_; }
  template <typename T>
  size_t Count() const {
    size_t count = 0;
    for (const verbs::Blob& blob : heard_) count += std::holds_alternative<T>(blob);
    return count;
  }

 private:
  explicit RawControl(net::Fd fd) : fd_(std::move(fd)) {}
  bool Write(std::string_view bytes);
  void Take();

  net::Fd fd_;
  bool welcomed_ = false;
  std::string in_;
  std::vector<verbs::Blob> heard_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_RAW_CONTROL_H_
