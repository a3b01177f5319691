// The accepting side: lends memory, never touches the peer's.
//
// Its kDown means that the peer's CPU writes nothing here any more. The dialler closes its socket
// only after its copier has stopped, so the end of what it sends is the proof, and Shutdown only
// closes this side's direction and waits for it. The proof relies on the socket not living on in
// another process: it is CLOEXEC, the dialler ends the connection by shutdown(), which no forked
// child's copy can hold back, and a death that a child's copy hides shows at the pidfd.

#ifndef KVXFER_BACKENDS_SHM_ACCEPTED_H_
#define KVXFER_BACKENDS_SHM_ACCEPTED_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "src/backends/shm/endpoint.h"

namespace kvxfer::shm {

class AcceptedEndpoint final : public ShmEndpoint {
 public:
  // An embryo: reported as kAccepted once the dialler has said who it is. `pid`: what the kernel
  // says of the dialler.
  static absl::StatusOr<std::unique_ptr<AcceptedEndpoint>> Begin(Hub* hub, UniqueFd socket,
                                                                 uint32_t pid);
  ~AcceptedEndpoint() override;

  std::string Describe() const override;
  void Authorize() override;
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // To authorised endpoints only.
  void SendFile(const SharedFiles::File& file);
  void SendForget(uint64_t id);

  bool failed_embryo() const { return failed_embryo_; }

 protected:
  absl::Status OnFrame(Channel::Frame& frame) override;
  void OnEnd(const absl::Status& cause) override;
  void OnFlushed() override;

 private:
  AcceptedEndpoint(Hub* hub, UniqueFd socket, uint32_t pid);
  absl::Status OnDial(const DialBody& dial);
  void LeaveAuthorised();

  const uint32_t dialler_pid_;
  bool promoted_ = false;  // the agent knows it
  bool failed_embryo_ = false;
  bool authorised_ = false;
  absl::Status why_;  // of Shutdown
  // The dialler writes the second once, when it has been authorised, and reads the first then and
  // with every batch: while it holds, this is still the memory that it was lent.
  alignas(16) std::array<uint64_t, 2> probe_{};
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_ACCEPTED_H_
