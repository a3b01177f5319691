// The accepting side of an shm connection: it lends memory and never touches the peer's.
//
// Its kDown means that the peer's CPU no longer writes here. The connecting side closes its
// socket only after its copier has stopped, so the end of the socket is the proof. Shutdown
// therefore closes only this side's direction and waits for the peer's. The proof requires that no
// other process keeps the socket open. It is CLOEXEC, and the connecting side ends the connection
// by shutdown(), which works although a forked child has a copy of the socket. If the peer dies and
// a child's copy hides that, the pidfd shows it.
//
// If the peer's GPUs copied here (kHold), the end of the socket is no proof: a process that dies
// closes its sockets before its GPUs have stopped. It must have said kQuiet, or its pidfd must show
// the exit, which the kernel reports after it has closed the GPUs.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_SHM_ACCEPTED_H_
#define KVXFER_BACKENDS_SHM_ACCEPTED_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "src/backends/shm/endpoint.h"

namespace kvxfer::shm {

class ShmAcceptedEndpoint final : public ShmEndpoint {
 public:
  // A connection before its kDial frame: it is reported as kAccepted once that has arrived. `pid`:
  // the connecting process according to the kernel.
  static absl::StatusOr<std::unique_ptr<ShmAcceptedEndpoint>> Begin(Hub* hub, UniqueFd socket,
                                                                    uint32_t pid);
  ~ShmAcceptedEndpoint() override;

  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // Call these for authorised endpoints only.
  void SendFile(const SharedFiles::File& file);
  void SendForget(uint64_t id);

  bool failed_embryo() const { return failed_embryo_; }

 protected:
  absl::Status OnFrame(Channel::Frame& frame) override;
  void OnEnd(const absl::Status& cause) override;
  void OnFlushed() override;

 private:
  ShmAcceptedEndpoint(Hub* hub, UniqueFd socket, uint32_t pid);
  absl::Status OnDial(const DialBody& dial);
  void LeaveAuthorised();

  const uint32_t dialler_pid_;
  bool promoted_ = false;  // the agent knows it
  bool failed_embryo_ = false;
  bool authorised_ = false;
  bool held_ = false;  // the peer has said kHold, and not kQuiet
  absl::Status why_;   // the reason given to Shutdown, or of the end
  // The peer writes the second word once, when it has been authorised. It reads the first word then
  // and with every batch: as long as it finds the value there, this is still the memory that it was
  // lent.
  alignas(16) std::array<uint64_t, 2> probe_{};
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_ACCEPTED_H_
