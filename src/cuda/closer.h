// Closes what is not needed any more on a thread of its own. The driver may wait there for all that
// is in the streams of a context (cuIpcCloseMemHandle, cuMemUnmap), and a stream of the application
// may wait for what only the caller's thread will do (stream_word.h).
//
// The thread is there while there is something to close. What is not closed by the end of the
// process ends with it.
//
// Thread-safety: everything from any thread.

#ifndef KVXFER_CUDA_CLOSER_H_
#define KVXFER_CUDA_CLOSER_H_

#include "absl/functional/any_invocable.h"

namespace kvxfer::cuda {

// Runs `close` soon, behind what was handed over before. Not in a child that was forked from a
// process which closed something: its driver is dead.
void CloseLater(absl::AnyInvocable<void()> close);

// Whether something that was handed over has not been closed yet.
bool Closing();

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_CLOSER_H_
