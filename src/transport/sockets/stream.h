// One connected socket of an endpoint, with its readiness flags.
//
// Thread-safety: none; used by the thread that runs its client's reactor.

#ifndef KVXFER_TRANSPORT_SOCKETS_STREAM_H_
#define KVXFER_TRANSPORT_SOCKETS_STREAM_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// The object that a stream belongs to.
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual Reactor& reactor() = 0;
  // Called when one of its streams may have work.
  virtual void Activate() = 0;
};

class Stream : public Watcher {
 public:
  explicit Stream(StreamClient* client) : client_(client) {}
  ~Stream() override;

  bool attached() const { return fd_.valid(); }
  bool readable() const { return readable_; }
  bool writable() const { return writable_; }
  // The peer closed or reset the connection; bytes may be left to read.
  bool hung_up() const { return hung_up_; }
  int fd() const { return fd_.get(); }

  // Takes a socket that is not watched yet (Attach), or that another watcher watches (Adopt).
  absl::Status Attach(Fd fd);
  void Adopt(Fd fd);
  // Stops watching the socket and returns it.
  Fd Release();
  // Another client has the stream from now on, and its reactor watches the socket. On an error
  // nobody watches it, and Release is all that may be called.
  absl::Status MoveTo(StreamClient* client);

  void OnReady(uint32_t events) override;

 protected:
  // Both move at most what fits without blocking, update readiness, and return the number of bytes
  // moved (0: would block). Unavailable: end of file, reset, or another errno.
  absl::StatusOr<size_t> Write(std::span<iovec> pieces);
  absl::StatusOr<size_t> Read(std::span<iovec> pieces);

 private:
  StreamClient* client_;
  Fd fd_;
  bool readable_ = false;
  bool writable_ = false;
  bool hung_up_ = false;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_STREAM_H_
