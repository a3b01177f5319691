// One end of a rail: an endpoint with its own completion queue and one peer. Closing it is the
// fence: afterwards nothing is written or read through it.
//
// Progress is made in Poll alone, whatever progress the provider claims to make by itself.
//
// Thread-safety: none; called by the agent's driver only.

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

// An op in flight. Transfer 0: an op of the endpoint itself (a probe).
struct Flight {
  uint64_t op = 0;
  uint64_t transfer = 0;
  uint64_t remote = 0;                // the peer's address of its first byte
  std::optional<uint32_t> to_tell{};  // its immediate, if the provider does not carry it
  bool into_gpu = false;              // a read of which some bytes go into GPU memory
};

// An entry of the completion queue: an immediate of the peer, or the completion of a flight.
struct Done {
  std::optional<uint32_t> immediate{};
  Flight flight{};
  absl::Status status{};
  bool maybe_op = false;  // of an error: the op itself may have caused it, not the path
};

class End {
 public:
  static absl::StatusOr<std::unique_ptr<End>> Open(const Domain* domain);
  ~End();

  const Domain& domain() const { return *domain_; }
  // The endpoint's address, opaque; the peer needs it for SetPeer.
  const std::string& address() const { return address_; }
  absl::Status SetPeer(const std::string& address);

  struct Request {
    bool read = false;
    std::span<const iovec> local{};
    std::span<void*> descs{};  // those of `local`
    std::span<const fi_rma_iov> remote{};
    std::optional<uint32_t> immediate{};  // of a write, if the provider carries immediates
    Flight flight{};
  };
  // False: there is no space now.
  absl::StatusOr<bool> Post(const Request& request);

  // Reads at most `most` entries. An error means that this end can no longer be used.
  absl::Status Poll(size_t most, std::vector<Done>& out);
  // The last Poll may have left entries in the queue.
  bool unread() const { return unread_; }
  size_t in_flight() const { return slots_.size() - free_.size(); }
  size_t CountOf(uint64_t transfer) const;
  // Increases with every flight that completes.
  uint64_t progress() const { return progress_; }

  // Polls until nothing is in flight, but not beyond `until`.
  void Drain(Time until, std::vector<Done>& out);
  // Closes the endpoint. Returns the flights that had not completed; they are over.
  std::vector<Flight> Close();

 private:
  // The context of an op, which its completion points at. libfabric's own part comes first.
  struct Slot {
    fi_context2 context{};
    Flight flight{};
    bool used = false;
  };

  explicit End(const Domain* domain) : domain_(domain) {}
  absl::Status Make();
  // The flight that `context` belongs to. Empty: it has completed already; some providers report
  // each packet that failed.
  std::optional<Flight> Take(void* context);
  absl::Status ReadError(std::vector<Done>& out);

  const Domain* const domain_;
  FiPtr<fid_av> peers_;
  FiPtr<fid_cq> queue_;
  FiPtr<fid_ep> endpoint_;
  std::string address_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  size_t depth_ = kMaxFlights;  // the most ops in flight
  bool unread_ = false;
  uint64_t progress_ = 0;
  std::deque<Slot> slots_;  // a deque, because libfabric points at the slots
  std::vector<Slot*> free_;
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_END_H_
