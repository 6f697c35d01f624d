// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_STATUS_MATCHERS_H_
#define TANDEM_TESTS_TESTING_STATUS_MATCHERS_H_

// Matchers and macros for absl::Status and absl::StatusOr<T> in tests. The absl release of Debian 12 has
// none.
//
//   TANDEM_ASSERT_OK(table.Load(path));  // ends the test unless OK; TANDEM_EXPECT_OK continues
//   TANDEM_ASSERT_OK_AND_ASSIGN(auto server, Server::Start(...));  // ends the test unless OK
//   EXPECT_THAT(status_or, IsOk());
//   EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
//   EXPECT_THAT(status_or, StatusIs(absl::StatusCode::kNotFound, HasSubstr("user")));

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::testing {

class IsOkMatcher {
 public:
  using is_gtest_matcher = void;
  template <typename T>
  bool MatchAndExplain(const T& value, std::ostream* os) const {
    const absl::Status& status = internal::AsStatus(value);
    if (os != nullptr && !status.ok()) *os << "which is " << status;
    return status.ok();
  }
  void DescribeTo(std::ostream* os) const { *os << "is OK"; }
  void DescribeNegationTo(std::ostream* os) const { *os << "is not OK"; }
};

inline IsOkMatcher IsOk() { return {}; }

class StatusIsMatcher {
 public:
  using is_gtest_matcher = void;
  StatusIsMatcher(absl::StatusCode code, ::testing::Matcher<const std::string&> message)
      : code_(code), message_(std::move(message)) {}
  template <typename T>
  bool MatchAndExplain(const T& value, std::ostream* os) const {
    const absl::Status& status = internal::AsStatus(value);
    if (os != nullptr) *os << "which is " << status;
    return status.code() == code_ && message_.Matches(std::string(status.message()));
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has code " << code_ << " and a message that ";
    message_.DescribeTo(os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has not code " << code_ << ", or not a message that ";
    message_.DescribeTo(os);
  }

 private:
  absl::StatusCode code_;
  ::testing::Matcher<const std::string&> message_;
};

inline StatusIsMatcher StatusIs(absl::StatusCode code) { return {code, ::testing::_}; }
inline StatusIsMatcher StatusIs(absl::StatusCode code, ::testing::Matcher<const std::string&> message) {
  return {code, std::move(message)};
}

// Implements TANDEM_ASSERT_OK and TANDEM_EXPECT_OK. They do not use a matcher, because there are thousands of
// uses.
inline ::testing::AssertionResult CheckOk(const char* expression, const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "Value of: " << expression << "\nExpected: is OK\n  Actual: " << status;
}
template <typename T>
::testing::AssertionResult CheckOk(const char* expression, const absl::StatusOr<T>& status_or) {
  return CheckOk(expression, status_or.status());
}

}  // namespace tandem::testing

#define TANDEM_ASSERT_OK(expr) ASSERT_PRED_FORMAT1(::tandem::testing::CheckOk, (expr))
#define TANDEM_EXPECT_OK(expr) EXPECT_PRED_FORMAT1(::tandem::testing::CheckOk, (expr))

#define TANDEM_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  TANDEM_ASSERT_OK_AND_ASSIGN_IMPL_(TANDEM_CONCAT_(tandem_status_or_, __LINE__), lhs, expr)
#define TANDEM_ASSERT_OK_AND_ASSIGN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                      \
  TANDEM_ASSERT_OK(tmp.status());                         \
  lhs = *std::move(tmp)

#endif  // TANDEM_TESTS_TESTING_STATUS_MATCHERS_H_
