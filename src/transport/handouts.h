// Metadata on its way to those who asked for it, over sockets of their own: a welcome, the bytes,
// and the end. Who does not read holds up nobody else, and is let go after kTimeout, or earlier
// where others wait.
//
// Thread-safety: none; used by the backend's owner.

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
  // Whoever took so long makes room for another.
  static constexpr Duration kFairTime = std::chrono::seconds(2);
  // What one turn gives to the kernel, in all and to one.
  static constexpr size_t kTurnBytes = 256 * 1024;
  static constexpr size_t kPieceBytes = 64 * 1024;

  // False: kMax are under way, and none has had its time.
  bool MakeRoom(Time now);
  // `fd` is watched already. `bytes` is shared by all who are handed the same.
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
    // Sends up to `most` bytes and returns how many; less: would block, or over.
    size_t Send(size_t most);
    bool over() const { return over_; }

   private:
    std::span<const std::byte> Left() const;

    Handouts* const owner_;
    Reactor* const reactor_;
    Fd fd_;
    std::array<std::byte, kWelcomeBytes> head_{};
    const std::shared_ptr<const std::string> bytes_;
    size_t sent_ = 0;  // of both
    const Time begun_ = Now();
    bool ready_ = true;
    bool over_ = false;
  };

  std::vector<std::unique_ptr<Handout>> all_;  // oldest first
  size_t turn_ = 0;                            // whose it is
  bool fresh_ = false;                         // some may take bytes
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_HANDOUTS_H_
