// One connected socket of a link, with its readiness.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_TCP_STREAM_H_
#define KVXFER_BACKENDS_TCP_STREAM_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/tcp/reactor.h"
#include "src/backends/tcp/socket.h"

namespace kvxfer::tcp {

class Link;

class Stream : public Watcher {
 public:
  explicit Stream(Link* link) : link_(link) {}
  ~Stream() override;

  bool attached() const { return fd_.valid(); }
  bool readable() const { return readable_; }
  bool writable() const { return writable_; }
  // The peer closed or reset it; bytes may be left to read.
  bool hung_up() const { return hung_up_; }
  int fd() const { return fd_.get(); }

  // Takes a socket, watched already by another watcher or not at all.
  absl::Status Attach(Fd fd);
  void Adopt(Fd fd);
  // Gives the socket back, no longer watched.
  Fd Release();

  void OnReady(uint32_t events) override;

 protected:
  // Both move at most what fits without blocking, return the bytes moved (0: would block) and note
  // readiness. Unavailable: end of file, reset, or another errno.
  absl::StatusOr<size_t> Write(std::span<iovec> pieces);
  absl::StatusOr<size_t> Read(std::span<iovec> pieces);

  Link* const link_;

 private:
  Fd fd_;
  bool readable_ = false;
  bool writable_ = false;
  bool hung_up_ = false;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_STREAM_H_
