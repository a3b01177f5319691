// UCX orders what was done before a frame was sent before what is done once it came, by
// instructions of a library that is not instrumented. This tells ThreadSanitizer, for agents of one
// process.
//
// Thread-safety: any thread.

#ifndef KVXFER_BACKENDS_UCX_FRAME_ORDER_H_
#define KVXFER_BACKENDS_UCX_FRAME_ORDER_H_

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace kvxfer::ucx {

#if defined(__SANITIZE_THREAD__)
inline char frame_order;
inline void FrameIsSent() { __tsan_release(&frame_order); }
inline void FrameHasCome() { __tsan_acquire(&frame_order); }
#else
inline void FrameIsSent() {}
inline void FrameHasCome() {}
#endif

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_FRAME_ORDER_H_
