// The questions of a target (QUIESCE) that wait for transfers of this agent. Adding a question
// costs what it names, and the end of a transfer costs the questions that wait for it, however many
// others there are. Pure.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_AGENT_SESSION_ASKED_BOOK_H_
#define KVXFER_AGENT_SESSION_ASKED_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class AskedBook {
 public:
  struct Question {
    uint64_t id = 0;
    bool revoke = false;
    std::vector<uint32_t> regions{};  // those that are revoked
    bool closes = false;              // and what is revoked may be open here
  };

  // Whether a target may ask `frame` beside what it asks already. `more`: so many of its revoking
  // questions are not in the book any more and not answered either.
  absl::Status CheckSpace(const QuiesceFrame& frame, size_t more) const;
  // `transfers`: those that it waits for, each once; none: it is quiet now.
  void Add(Question question, std::span<const uint64_t> transfers);
  // The transfer has ended and is quiet.
  void End(uint64_t transfer);
  // Those that wait for nothing any more; the book forgets them.
  std::vector<Question> TakeQuiet();
  bool empty() const { return waiting_.empty() && quiet_.empty(); }

 private:
  struct Waiting {
    Question question{};
    size_t transfers = 0;  // still to end
  };
  std::unordered_map<uint64_t, Waiting> waiting_;  // by a number of its own: ids are the target's
  std::unordered_map<uint64_t, std::vector<uint64_t>> waits_for_;  // transfer → numbers
  std::vector<Question> quiet_;
  uint64_t last_number_ = 0;
  size_t revoking_ = 0;          // questions of both that revoke
  size_t asking_ = 0;            // and those that do not
  size_t revoking_regions_ = 0;  // what is named in those that revoke
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_ASKED_BOOK_H_
