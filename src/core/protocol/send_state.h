// The states of a transfer at its initiator, and which may follow which.
//
// Every transfer is in one state:
//
//   from          may become
//   kLeasing      kSending, kSent (nothing to post), ends
//   kSending      kSent, ends
//   kSent         kSending (slices go again), kConfirming, kOpened, kGone (done), ends
//   kConfirming   kSent (the lease held), ends
//   kOpened       kAmending (slices go again), kArrived, kGone (done), ends
//   kAmending     kOpened, ends
//   kArrived      kGone (done), ends
//   (ends: otherwise than done, as kAborting or kStopping)
//   kAborting     kStopping (answered), kOrphaned (the session is lost), kUnanswered
//   kStopping     kMoving, kGone
//   kOrphaned     kStopping (the peer is back: nothing of the old session lands), kMoving, kGone
//   kUnanswered   kMoving (answered, or the session is lost), kGone
//   kMoving       kGone
//
// A transfer that ends is kAborting while the target has to answer ABORT, else kStopping. The
// application is told when that is over and no op is in flight (kGone), or at the time that EndBy
// allows, quiet or not: then the transfer goes on as kUnanswered, or as kMoving if only ops are
// left that a GPU or a device does not give back (kOpsReturnWithin).
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PROTOCOL_SEND_STATE_H_
#define KVXFER_CORE_PROTOCOL_SEND_STATE_H_

#include <cstdint>

namespace kvxfer {

enum class SendState : uint8_t {
  kLeasing,     // the owner of a lease is asked; nothing is read before its answer
  kSending,     // slices are left to post
  kSent,        // everything is posted; ops, or the answer to a DISCARD, are awaited
  kConfirming,  // everything is read; the owner is asked whether the lease held all the time
  kOpened,      // the target knows all lanes (OPEN, AMEND); its word is awaited
  kAmending,    // it does not know all, because slices go again
  kArrived,     // the target has all of it; ops are still in flight
  kAborting,    // ABORT is sent and not answered
  kStopping,    // the target need not be asked, or has answered; ops are awaited
  kOrphaned,    // the session was lost before the answer; ops are in flight
  kUnanswered,  // the application knows the end; ABORT is not answered
  kMoving,      // the application knows the end; ops are in flight
  kGone,        // over at both ends; see Forget
};

// Whether the table above has that transition.
bool IsLegal(SendState from, SendState to);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SEND_STATE_H_
