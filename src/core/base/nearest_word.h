// Which word was meant by one that is not known.
#ifndef KVXFER_CORE_BASE_NEAREST_WORD_H_
#define KVXFER_CORE_BASE_NEAREST_WORD_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvxfer {

// The one of `known` that the fewest insertions, removals, replacements and swaps of neighbours
// make of `word`; the first of equals. Empty where more than a third of the letters would change.
std::string NearestWord(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_NEAREST_WORD_H_
