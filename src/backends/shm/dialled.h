// The connecting side of an shm connection. It executes every op with this process's CPU. Beside
// that the agent may let GPUs copy to and from the peer's memfds (HoldOpen); the connection ends
// after these copies.
//
// It is up as soon as both sides have checked each other's user. The accepting side sends its offer
// (probe words, memfds) when its agent authorises the connection, before any later message. So an
// Import that follows such a message always finds the offer.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_SHM_DIALLED_H_
#define KVXFER_BACKENDS_SHM_DIALLED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "src/backends/shm/copier.h"
#include "src/backends/shm/endpoint.h"
#include "src/backends/shm/wire.h"
#include "src/core/base/clock.h"

namespace kvxfer::shm {

class ShmDialledEndpoint final : public ShmEndpoint {
 public:
  // kConnected or kDown follows.
  static std::unique_ptr<ShmDialledEndpoint> Dial(Hub* hub, const Address& address);
  ~ShmDialledEndpoint() override;

  EndpointInfo Describe() const override;
  void Authorize() override {}
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  void Shutdown(absl::Status why) override;
  std::shared_ptr<CopyHold> HoldOpen() override;
  // Unavailable: the peer has not authorised this connection yet, or the region's memfd has not
  // arrived; try again after the next Poll. PermissionDenied, ResourceExhausted,
  // FailedPrecondition: it cannot be imported, and why.
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // Copies one slice and returns its number of bytes.
  size_t Step();
  bool busy() const { return busy_; }
  // After Shutdown: until when the peer may take what was sent before.
  Time linger_until() const { return linger_until_; }
  void OnLingerDeadline() { OnEnd(why_); }
  // A GPU copies, as far as the agent says.
  bool held() const { return hold_.use_count() > 1; }
  // It was held after its end, and is not any more.
  void OnReleased() { OnEnd(why_); }

 protected:
  absl::Status OnFrame(Channel::Frame& frame) override;
  void OnEnd(const absl::Status& cause) override;
  void OnFlushed() override;

 private:
  struct File {
    UniqueFd fd;
    absl::Status lost;  // why there is no fd
  };

  ShmDialledEndpoint(Hub* hub, UniqueFd socket);
  absl::Status Start(const Address& address);
  absl::Status OnOffer(const OfferBody& offer, const Channel::Frame& frame);
  absl::StatusOr<std::unique_ptr<RemoteKey>> ImportMapped(const RemoteRegion& region,
                                                          const RegionKey& key);
  std::string Path() const;
  void Linger(Duration longest);
  void SayQuiet();

  Copier copier_;
  bool busy_ = false;  // in Hub::busy
  bool offered_ = false;
  absl::Status why_;                // of Shutdown, or of what else ended it
  std::shared_ptr<CopyHold> hold_;  // null: no GPU has copied
  bool quiet_said_ = false;
  bool quiet_lingers_ = false;
  Time linger_until_{};
  absl::Status mapped_;  // OK, or why the peer's memfds cannot be mapped
  absl::Status attach_;  // OK, or why its other memory cannot be attached
  std::unordered_map<uint64_t, File> files_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_DIALLED_H_
