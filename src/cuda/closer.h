// Closes CUDA objects on a thread of its own. cuIpcCloseMemHandle and cuMemUnmap may wait for all
// work in the CUDA streams of a context, and a CUDA stream of the application may wait for
// something that only the caller's thread will do (stream_word.h): on the caller's thread that
// would be a deadlock.
//
// The thread exists while there is something to close. What is still open when the process ends
// goes with the process.
//
// Thread-safety: everything from any thread.

#ifndef KVXFER_CUDA_CLOSER_H_
#define KVXFER_CUDA_CLOSER_H_

#include "absl/functional/any_invocable.h"

namespace kvxfer::cuda {

// Runs `close` soon, after what was handed over before. Does nothing in a child that was forked
// from a process which has closed something: the CUDA driver does not work there.
void CloseLater(absl::AnyInvocable<void()> close);

// True: something that was handed over is not closed yet.
bool Closing();

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_CLOSER_H_
