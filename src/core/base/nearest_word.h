// Guesses which known word was meant by an unknown one.
//
// Thread-safety: a function without state.
#ifndef KVXFER_CORE_BASE_NEAREST_WORD_H_
#define KVXFER_CORE_BASE_NEAREST_WORD_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvxfer {

// The word of `known` with the smallest optimal string alignment distance to `word` (insertions,
// removals, replacements and swaps of neighbours cost 1 each); the first one of equals. Empty if
// the distance exceeds a third of the letters of `word`.
std::string NearestWord(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_NEAREST_WORD_H_
