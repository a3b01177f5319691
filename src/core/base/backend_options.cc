#include "kvxfer/backend_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

std::string Variable(std::string_view backend, std::string_view key) {
  return absl::AsciiStrToUpper(absl::StrCat("kvxfer_", ToAbsl(backend), "_", ToAbsl(key)));
}

}  // namespace

const std::string* OptionReader::Find(std::string_view key) {
  keys_.emplace_back(key);
  const auto at = section_.find(keys_.back());
  return at == section_.end() || at->second.empty() ? nullptr : &at->second;
}

void OptionReader::Refuse(std::string_view key, std::string_view value, std::string_view rule) {
  status_.Update(absl::InvalidArgumentError(absl::StrCat("`", ToAbsl(backend_), ".", ToAbsl(key),
                                                         "` (", Variable(backend_, key), ") is \"",
                                                         ToAbsl(value), "\": ", ToAbsl(rule))));
}

void OptionReader::Text(std::string_view key, std::string& out) {
  if (const std::string* text = Find(key)) out = *text;
}

void OptionReader::List(std::string_view key, std::vector<std::string>& out) {
  const std::string* text = Find(key);
  if (text == nullptr) return;
  auto values = SplitNames(*text, ',');
  if (!values) {
    return Refuse(key, *text, "has an empty name; write names with commas, as in \"a,b\"");
  }
  out = *std::move(values);
}

void OptionReader::Flag(std::string_view key, bool& out) {
  const std::string* text = Find(key);
  if (text == nullptr) return;
  if (*text != "0" && *text != "1") return Refuse(key, *text, "must be 0 or 1");
  out = *text == "1";
}

void OptionReader::Real(std::string_view key, double& out, double low, double high) {
  const std::string* text = Find(key);
  if (text == nullptr) return;
  double value = 0;
  if (!absl::SimpleAtod(*text, &value) || !(value >= low && value <= high)) {
    return Refuse(key, *text, ToStd(absl::StrCat("must be a number from ", low, " to ", high)));
  }
  out = value;
}

void OptionReader::Time(std::string_view key, Duration& out, Duration unit, Duration low,
                        Duration high) {
  int64_t count = out / unit;
  Signed(key, count, low / unit, high / unit);
  // What was not named keeps its value to the nanosecond.
  if (count != out / unit) out = count * unit;
}

void OptionReader::Signed(std::string_view key, int64_t& out, int64_t low, int64_t high) {
  const std::string* text = Find(key);
  if (text == nullptr) return;
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < low || value > high) {
    return Refuse(key, *text, ToStd(absl::StrCat("must be a number from ", low, " to ", high)));
  }
  out = value;
}

void OptionReader::Unsigned(std::string_view key, uint64_t& out, uint64_t low, uint64_t high) {
  const std::string* text = Find(key);
  if (text == nullptr) return;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < low || value > high) {
    return Refuse(key, *text, ToStd(absl::StrCat("must be a number from ", low, " to ", high)));
  }
  out = value;
}

absl::Status OptionReader::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : section_) {
    if (std::ranges::find(keys_, key) != keys_.end()) continue;
    const std::string nearest = NearestWord(key, keys_);
    return absl::InvalidArgumentError(absl::StrCat(
        "backend ", ToAbsl(backend_), " has no option `", key, "` (", Variable(backend_, key), ")",
        nearest.empty() ? "" : "; did you mean `", nearest, nearest.empty() ? "" : "`?",
        nearest.empty() ? absl::StrCat("; it has ", absl::StrJoin(keys_, ", ")) : ""));
  }
  return absl::OkStatus();
}

void OptionWriter::List(std::string_view key, const std::vector<std::string>& values) {
  Set(key, absl::StrJoin(values, ","));
}

void OptionWriter::Real(std::string_view key, double value, double /*low*/, double /*high*/) {
  // As many digits as it takes to read the same value again.
  Set(key, absl::StrFormat("%.17g", value));
}

}  // namespace kvxfer
