// What to say about a word that is not known.
#ifndef KVXFER_CLI_COMMON_DID_YOU_MEAN_H_
#define KVXFER_CLI_COMMON_DID_YOU_MEAN_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvxfer::cli {

// "; did you mean tcp?", or nothing if no word of `known` is near `word` (NearestWord). Upper and
// lower case count as equal.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

// DidYouMean, or if that says nothing "; choose rate, streaming or migration".
std::string DidYouMeanOrChoose(std::string_view word, const std::vector<std::string>& known);

// "rate, streaming or migration".
std::string JoinOr(const std::vector<std::string>& words);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_DID_YOU_MEAN_H_
