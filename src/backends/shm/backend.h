// The shm backend: listens on an abstract socket, accepts, registers, and does the work of Poll.
//
// Thread-safety: none, see kvxfer/backend.h; Register from any thread.

#ifndef KVXFER_BACKENDS_SHM_BACKEND_H_
#define KVXFER_BACKENDS_SHM_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvxfer/backend.h"
#include "src/backends/shm/accepted.h"
#include "src/backends/shm/dialled.h"
#include "src/backends/shm/hub.h"
#include "src/backends/shm/regions.h"
#include "src/transport/unix_listener.h"

namespace kvxfer::shm {

class ShmBackend final : public Backend,
                         private net::UnixListener::Owner,
                         private RegistrationOwner {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendContext& context);
  ~ShmBackend() override;

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

 private:
  ShmBackend(uint32_t copy_threads, ControlCarrier control) : hub_(copy_threads, control) {}
  absl::Status MakeProbeFile();
  absl::Status MakeBell();
  void OnAccepted(UniqueFd socket, const net::Credentials& peer) override;
  void OnRefused(UniqueFd socket, const net::Credentials& peer) override;
  bool EndOldestSilent() override;
  void TrimEmbryos();
  void EndLingering();
  void EndHeld();
  void SetTimer();
  absl::StatusOr<RegionKey> Share(const MemorySpan& span);
  void Unregister(const RegionKey& key) override;
  void PollRings();
  void CopySlices();

  BackendInfo info_;
  shm::Address address_;
  Hub hub_;
  net::UnixListener listener_{"shm", this};
  bool armed_ = false;    // peers were asked to ring the bell
  size_t ring_turn_ = 0;  // which ring goes first
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_BACKEND_H_
