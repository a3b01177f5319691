// Hides from ThreadSanitizer what a data thread does to an application's memory; its own state is
// still looked at. Two transfers may write one place at the same time, as two devices may, and what
// is there then is the application's affair. And the order between what the thread has moved and
// what the application does next may come from another process, which ThreadSanitizer does not see.
//
// Thread-safety: any thread.

#ifndef KVXFER_TRANSPORT_HOST_HIDDEN_MOVE_H_
#define KVXFER_TRANSPORT_HOST_HIDDEN_MOVE_H_

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace kvxfer {

#if defined(__SANITIZE_THREAD__)
inline thread_local bool hides_moves = false;
inline void HideMovesOfThisThread() { hides_moves = true; }

// While one lives, bytes are moved.
class HiddenMove {
 public:
  HiddenMove() {
    if (!hides_moves) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~HiddenMove() {
    if (!hides_moves) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  HiddenMove(const HiddenMove&) = delete;
  HiddenMove& operator=(const HiddenMove&) = delete;
};
#else
inline void HideMovesOfThisThread() {}
struct HiddenMove {
  HiddenMove() {}   // NOLINT(modernize-use-equals-default): so that one is not an unused variable
  ~HiddenMove() {}  // NOLINT(modernize-use-equals-default)
};
#endif

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_HIDDEN_MOVE_H_
