// A connection to one peer: a control stream, and the queue pairs of its rails. What both sides
// have in common is here; DialledLink and AcceptedLink are the two sides.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_LINK_H_
#define KVXFER_BACKENDS_VERBS_LINK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/core/clock.h"
#include "src/net/control_stream.h"

namespace kvxfer::verbs {

class VerbsBackend;

class Link : public Endpoint,
             public net::StreamOwner,
             public SetupQueue::Client,
             public DestroyQueue::Client {
 public:
  ~Link() override;

  // --- Endpoint ---
  bool Send(std::span<const std::byte> message) override;
  void Shutdown(absl::Status why) override;

  // --- for the backend ---
  // One turn of the control stream.
  void Work();
  virtual bool HasWork() const;
  virtual std::optional<Time> deadline() const = 0;
  virtual void OnDeadline(Time now) = 0;
  // `port` of `device` came up, went down or became another.
  virtual void OnPort(const Device& device, uint8_t port, ibv_event_type type) = 0;
  // A queue pair of this link reported an error by itself.
  virtual void OnQueuePair(const Device& device, uint32_t number, const absl::Status& why) = 0;
  // Nothing works with that device any more.
  virtual void OnBroken(const Device& device, const absl::Status& why) = 0;
  // Memory was registered that `device` does not know: nothing may be posted there.
  virtual void OnUncovered(const Device& /*device*/, const absl::Status& /*why*/) {}
  // The backend goes first.
  void Detach();
  bool down() const { return state_ == State::kDown; }
  bool up() const { return state_ == State::kUp; }
  bool active = false;  // in the backend's list of links with work

  // --- net::StreamOwner ---
  net::Reactor& reactor() override;
  void Activate() override;

 protected:
  enum class State : uint8_t { kDialling, kUp, kDown };

  Link(VerbsBackend* backend, State state);

  virtual std::string Name() const = 0;
  // What is to be done before the peer's frames are read; false: nothing more now.
  virtual bool WorkBefore() { return true; }
  virtual absl::Status OnBlob(Blob& blob) = 0;
  // Destroys every queue pair, ends every op. What a device refuses to destroy is left to end
  // later.
  virtual void EndData(const absl::Status& why) = 0;
  // Whether every queue pair of this link that carried data is gone.
  virtual bool IsQuiet() const = 0;
  // It may be quiet now: says kDown where that waited for it.
  void FinishDown();

  void Tell(const Blob& blob);
  // Ends the link for what the peer or the network did.
  void Fail(const absl::Status& status);
  void Down(absl::Status why, bool tell);
  void Emit(Event event);
  void Emit(EventKind kind, uint64_t id = 0, absl::Status status = {});
  void EmitRail(EventKind kind, uint32_t rail, absl::Status status = {});

  VerbsBackend* backend_;
  State state_;
  net::ControlStream control_;

 private:
  bool OnFrame(const net::ControlStream::Frame& frame);

  bool passed_on_ = false;     // Shutdown or Down has begun
  absl::Status why_down_;      // until kDown has been said
  uint64_t message_poll_ = 0;  // number of the Poll that last reported messages of this link
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_LINK_H_
