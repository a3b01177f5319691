#include "src/agent/session/question_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

absl::Status QuestionBook::CheckSpace() const {
  const size_t open = questions_.size() - revoking_ - revoked_.size();
  if (open < kMaxQuestions / 2) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      open, " calls of Quiesce are not answered; ask IsQuiet of those that are quarantined"));
}

QuestionBook::Question& QuestionBook::Open(bool revoke) {
  const uint64_t token = ++last_token_;
  if (revoke) ++revoking_;
  return questions_.emplace(token, Question{.token = token, .revoke = revoke}).first->second;
}

void QuestionBook::Ask(Question& question, std::set<SessionId> waiting) {
  question.waiting = std::move(waiting);
  if (question.waiting.empty()) OnQuiet(question);
}

void QuestionBook::OnAnswer(uint64_t token, SessionId session) {
  const auto it = questions_.find(token);
  if (it != questions_.end()) Answered(it->second, session);
}

void QuestionBook::OnGone(SessionId session, std::optional<SessionId> instead) {
  for (auto& [token, question] : questions_) {
    if (instead.has_value() && question.waiting.contains(session)) {
      question.waiting.insert(*instead);
    }
    Answered(question, session);
  }
}

bool QuestionBook::AnyWaitsFor(SessionId session) const {
  return std::ranges::any_of(
      questions_, [&](const auto& entry) { return entry.second.waiting.contains(session); });
}

const std::set<QuestionBook::SessionId>* QuestionBook::WaitingOf(uint64_t token) const {
  const auto it = questions_.find(token);
  return it == questions_.end() ? nullptr : &it->second.waiting;
}

absl::StatusOr<bool> QuestionBook::IsQuiet(uint64_t token) {
  const auto it = questions_.find(token);
  if (it == questions_.end() || it->second.revoke) {
    return absl::NotFoundError(absl::StrCat("no quarantine with token ", token));
  }
  if (!it->second.waiting.empty()) return false;
  questions_.erase(it);
  return true;
}

std::vector<uint64_t> QuestionBook::TakeRevoked() {
  for (const uint64_t token : revoked_) questions_.erase(token);
  return std::exchange(revoked_, {});
}

void QuestionBook::Answered(Question& question, SessionId session) {
  if (question.waiting.erase(session) > 0 && question.waiting.empty()) OnQuiet(question);
}

void QuestionBook::OnQuiet(Question& question) {
  if (question.revoke) {
    --revoking_;
    revoked_.push_back(question.token);
    return;
  }
  question.quiet->store(true, std::memory_order_release);
  loop_->Wake(question.quiet.get());
}

}  // namespace kvxfer
