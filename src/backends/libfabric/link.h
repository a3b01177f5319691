// A connection to one peer: a control stream (src/net), and an endpoint for each rail. What both
// sides have in common is here; DialledLink and AcceptedLink are the two sides.
//
// A rail goes from one domain to the peer's of the same number, and fails alone.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_LIBFABRIC_LINK_H_
#define KVXFER_BACKENDS_LIBFABRIC_LINK_H_

#include <span>
#include <string>

#include "absl/status/status.h"
#include "src/backends/libfabric/frames.h"
#include "src/transport/control_link.h"

namespace kvxfer::libfabric {

class LibfabricBackend;

class Link : public net::ControlLink {
 public:
  // --- for the backend ---
  // Something may come out of its completion queues: they are looked at again and again.
  virtual bool busy() const = 0;
  // Looks at them.
  virtual void PollData() = 0;
  // The backend's owner is about to sleep.
  virtual void Rest() {}
  // The last look left something there.
  virtual bool unread() const = 0;

 protected:
  Link(LibfabricBackend* backend, net::PeerAddress peer);
  Link(LibfabricBackend* backend, net::Fd control, std::string from);

  virtual absl::Status OnWord(const Frame& frame) = 0;
  void Tell(const Frame& frame) { ControlLink::Tell(Encode(frame)); }

  LibfabricBackend* backend_;  // null once detached

 private:
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  void OnDetached() override { backend_ = nullptr; }
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_LINK_H_
