// A list in a text for a person that names the first few: "a, b and 3 more".
//
// Thread-safety: none; a plain value.

#ifndef KVXFER_CORE_BASE_SHORT_LIST_H_
#define KVXFER_CORE_BASE_SHORT_LIST_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {

class ShortList {
 public:
  static constexpr size_t kNamed = 8;

  // Counts an entry. True: Name it.
  bool Add() { return ++count_ <= kNamed; }
  void Name(std::string_view text) {
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", ToAbsl(text));
  }
  // Empty: there was none.
  std::string Text() const {
    return count_ <= kNamed ? text_ : absl::StrCat(text_, " and ", count_ - kNamed, " more");
  }

 private:
  size_t count_ = 0;
  std::string text_{};
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_SHORT_LIST_H_
