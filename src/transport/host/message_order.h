// Declares an order to ThreadSanitizer that it cannot see: what a thread did before it sent a
// message happens before what is done after the answer was received. TSan cannot see it if the
// order comes from a library that is not instrumented (UCX), from another process in between, or
// from memory that is mapped twice at two addresses (rings). One order covers all messages of the
// process.
//
// Thread-safety: any thread.

#ifndef KVXFER_TRANSPORT_HOST_MESSAGE_ORDER_H_
#define KVXFER_TRANSPORT_HOST_MESSAGE_ORDER_H_

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace kvxfer {

#if defined(__SANITIZE_THREAD__)
inline char message_order;
inline void MessageIsSent() { __tsan_release(&message_order); }
inline void MessageHasCome() { __tsan_acquire(&message_order); }
#else
inline void MessageIsSent() {}
inline void MessageHasCome() {}
#endif

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_MESSAGE_ORDER_H_
