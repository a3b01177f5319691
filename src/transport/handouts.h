// Sends metadata to peers that asked for it, over sockets of their own: a welcome, the bytes, and
// the end of the stream. A reader that is slow delays no other reader. It is dropped after
// kTimeout, or earlier if others wait.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_HANDOUTS_H_
#define KVXFER_TRANSPORT_HANDOUTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/base/clock.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

class Handouts {
 public:
  static constexpr size_t kMax = 128;
  static constexpr Duration kTimeout = std::chrono::seconds(10);
  // After this time a reader may be dropped in favour of a new one.
  static constexpr Duration kFairTime = std::chrono::seconds(2);
  // The most bytes that one turn passes to the kernel, in total and per reader.
  static constexpr size_t kTurnBytes = 256 * 1024;
  static constexpr size_t kPieceBytes = 64 * 1024;

  // Makes space for one more reader. False: kMax are in progress, and none is older than kFairTime.
  bool MakeSpace(Time now);
  // `fd` must be watched already. All readers of the same metadata share `bytes`.
  void Add(Reactor* reactor, Fd fd, std::shared_ptr<const std::string> bytes);
  void Work();
  bool HasWork() const { return fresh_; }
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  size_t size() const { return all_.size(); }

 private:
  class Handout final : public Watcher {
   public:
    Handout(Handouts* owner, Reactor* reactor, Fd fd, std::shared_ptr<const std::string> bytes);
    ~Handout() override;
    void OnReady(uint32_t events) override;
    bool ready() const { return ready_; }
    Time begun() const { return begun_; }
    // Sends up to `most` bytes and returns how many. Fewer: the socket would block, or the end is
    // reached.
    size_t Send(size_t most);
    bool over() const { return over_; }

   private:
    std::span<const std::byte> Left() const;

    Handouts* const owner_;
    Reactor* const reactor_;
    Fd fd_;
    std::array<std::byte, kWelcomeBytes> head_{};
    const std::shared_ptr<const std::string> bytes_;
    size_t sent_ = 0;  // bytes of head_ and bytes_ together
    const Time begun_ = Now();
    bool ready_ = true;
    bool over_ = false;
  };

  std::vector<std::unique_ptr<Handout>> all_;  // oldest first
  size_t turn_ = 0;                            // index of the next reader to serve
  bool fresh_ = false;                         // some reader may accept bytes
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_HANDOUTS_H_
