// One end of a rail: an endpoint with a completion queue and one peer. Closing it is the fence:
// nothing lands, or is read, through it any more.
//
// Progress is made in Poll alone, whatever the provider says of itself.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_END_H_
#define KVXFER_BACKENDS_LIBFABRIC_END_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/libfabric/domain.h"
#include "src/backends/libfabric/fi.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/base/clock.h"

namespace kvxfer::libfabric {

// An op in flight. Transfer 0: the link's own.
struct Flight {
  uint64_t op = 0;
  uint64_t transfer = 0;
  uint64_t remote = 0;                // where its first byte is, at the peer
  std::optional<uint32_t> to_tell{};  // its immediate, where the provider does not carry it
  bool into_gpu = false;              // a read, of which some bytes land in GPU memory
};

// What came out of a completion queue: an immediate of the peer, or the end of a flight.
struct Done {
  std::optional<uint32_t> immediate{};
  Flight flight{};
  absl::Status status{};
  bool maybe_op = false;  // of an error: the op may be to blame, and no path
};

class End {
 public:
  static absl::StatusOr<std::unique_ptr<End>> Open(const Domain* domain);
  ~End();

  const Domain& domain() const { return *domain_; }
  // Where the peer finds it, opaque.
  const std::string& address() const { return address_; }
  absl::Status SetPeer(const std::string& address);

  struct Request {
    bool read = false;
    std::span<const iovec> local{};
    std::span<void*> descs{};  // of `local`
    std::span<const fi_rma_iov> remote{};
    std::optional<uint32_t> immediate{};  // of a write
    Flight flight{};
  };
  // False: no room now.
  absl::StatusOr<bool> Post(const Request& request);

  // Takes at most `most` entries. An error: it is of no use any more.
  absl::Status Poll(size_t most, std::vector<Done>& out);
  // The last Poll may have left some.
  bool unread() const { return unread_; }
  size_t in_flight() const { return slots_.size() - free_.size(); }
  size_t CountOf(uint64_t transfer) const;
  // Rises with every flight that ends.
  uint64_t progress() const { return progress_; }

  // Polls until nothing is in flight, or `until`.
  void Drain(Time until, std::vector<Done>& out);
  // What had not ended; the flights are over.
  std::vector<Flight> Close();

 private:
  // libfabric's own words first: what a completion points at.
  struct Slot {
    fi_context2 context{};
    Flight flight{};
    bool used = false;
  };

  explicit End(const Domain* domain) : domain_(domain) {}
  absl::Status Make();
  // Nothing: it has ended before. Some providers tell of each packet that failed.
  std::optional<Flight> Take(void* context);
  absl::Status ReadError(std::vector<Done>& out);

  const Domain* const domain_;
  FiPtr<fid_av> peers_;
  FiPtr<fid_cq> queue_;
  FiPtr<fid_ep> endpoint_;
  std::string address_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  size_t depth_ = kMaxFlights;
  bool unread_ = false;
  uint64_t progress_ = 0;
  std::deque<Slot> slots_;  // a deque: they stay where they are
  std::vector<Slot*> free_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_END_H_
