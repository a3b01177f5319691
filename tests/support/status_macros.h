// Assertions on Status and StatusOr.
#ifndef KVXFER_TESTS_SUPPORT_STATUS_MACROS_H_
#define KVXFER_TESTS_SUPPORT_STATUS_MACROS_H_

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"

namespace kvxfer::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

template <typename T>
::testing::AssertionResult IsOk(const T& result) {
  if (StatusOf(result).ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << StatusOf(result).ToString();
}

// The status has `code` and its message contains every one of `words`.
template <typename T>
::testing::AssertionResult Fails(const T& result, absl::StatusCode code,
                                 std::initializer_list<const char*> words = {}) {
  const absl::Status& status = StatusOf(result);
  if (status.code() != code) {
    return ::testing::AssertionFailure()
           << "want " << absl::StatusCodeToString(code) << ", got " << status.ToString();
  }
  if (status.message().empty()) return ::testing::AssertionFailure() << "without a message";
  for (const char* word : words) {
    if (!absl::StrContains(status.message(), word)) {
      return ::testing::AssertionFailure() << "no \"" << word << "\" in: " << status.ToString();
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace kvxfer::testing

#define ASSERT_OK(expression) ASSERT_TRUE(::kvxfer::testing::IsOk(expression))
#define EXPECT_OK(expression) EXPECT_TRUE(::kvxfer::testing::IsOk(expression))
#define KVXFER_CONCAT_INNER(a, b) a##b
#define KVXFER_CONCAT(a, b) KVXFER_CONCAT_INNER(a, b)
#define ASSERT_OK_AND_ASSIGN(left, expression) \
  ASSERT_OK_AND_ASSIGN_IMPL(KVXFER_CONCAT(result_, __LINE__), left, expression)
#define ASSERT_OK_AND_ASSIGN_IMPL(result, left, expression) \
  auto result = (expression);                               \
  ASSERT_OK(result);                                        \
  left = *std::move(result)

#endif  // KVXFER_TESTS_SUPPORT_STATUS_MACROS_H_
