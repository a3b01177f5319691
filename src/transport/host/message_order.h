// What a thread did before a message was sent is before what is done once its answer comes, even
// where the two are ordered by something that ThreadSanitizer does not see: a library that is not
// instrumented (UCX), another process that stands between them, or memory that is mapped twice, at
// two addresses (rings). This tells it, for all messages of the process alike.
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
