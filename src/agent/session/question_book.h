// The questions that this agent asks its initiators (QUIESCE), and who has not answered them. Some
// are calls of Quiesce; others revoke regions that are being deregistered.
//
// Thread-safety: none but for Question::quiet; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_QUESTION_BOOK_H_
#define KVXFER_AGENT_SESSION_QUESTION_BOOK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/agent/engine/progress_loop.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class QuestionBook {
 public:
  using SessionId = SlotTable::SessionId;

  // `quiet` turns true once, when everybody has answered or is gone, and is the key of
  // ProgressLoop::Wake.
  struct Question {
    uint64_t token = 0;
    std::shared_ptr<std::atomic<bool>> quiet = std::make_shared<std::atomic<bool>>(false);
    std::set<SessionId> waiting{};
    bool revoke = false;
  };
  // Of questions that revoke.
  static constexpr size_t kMaxRevoking = kMaxRevocations / 2;

  // `loop` outlives the book.
  explicit QuestionBook(ProgressLoop* loop) : loop_(loop) {}

  // ResourceExhausted: too many calls of Quiesce are not answered.
  absl::Status CheckSpace() const;
  // Those that revoke may be opened only while fewer than kMaxRevoking are open. `waiting`: who is
  // asked; nobody: it is quiet at once.
  Question& Open(bool revoke);
  void Ask(Question& question, std::set<SessionId> waiting);

  // A session answers a question, which may be unknown.
  void OnAnswer(uint64_t token, SessionId session);
  // A session, or what stands in its place, answers nothing more. `instead`: what each of its
  // questions waits for now.
  void OnGone(SessionId session, std::optional<SessionId> instead);
  bool AnyWaitsFor(SessionId session) const;
  // The sessions that have not answered. Null: there is no such question.
  const std::set<SessionId>* WaitingOf(uint64_t token) const;

  // NotFound: unknown, or answered true before.
  absl::StatusOr<bool> IsQuiet(uint64_t token);
  size_t revoking() const { return revoking_; }
  // Questions that revoke and are quiet now, each once.
  bool any_revoked() const { return !revoked_.empty(); }
  std::vector<uint64_t> TakeRevoked();

 private:
  void Answered(Question& question, SessionId session);
  void OnQuiet(Question& question);

  ProgressLoop* const loop_;
  uint64_t last_token_ = 0;
  std::map<uint64_t, Question> questions_;  // until IsQuiet has answered true, or TakeRevoked
  size_t revoking_ = 0;                     // of them, those that revoke and are not quiet
  std::vector<uint64_t> revoked_;           // and those that are
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_QUESTION_BOOK_H_
