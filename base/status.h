// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_STATUS_H_
#define TANDEM_BASE_STATUS_H_

// Helpers for absl::Status. The absl release of Debian 12 has no status macros, so they are defined here.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Returns `status` with "`context`: " prepended to its message; code and payloads are unchanged. OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

namespace internal {
inline const absl::Status& AsStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, absl::string_view detail);
}  // namespace internal
}  // namespace tandem

#define TANDEM_CONCAT_INNER_(a, b) a##b
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)

// Returns the status of `expr` from the enclosing function unless it is OK.
#define TANDEM_RETURN_IF_ERROR(expr)                       \
  do {                                                     \
    auto&& tandem_status_ = (expr);                        \
    if (!tandem_status_.ok()) {                            \
      return ::tandem::internal::AsStatus(tandem_status_); \
    }                                                      \
  } while (false)

// Assigns the value of the StatusOr `expr` to `lhs`, or returns its status from the enclosing function:
//
//   TANDEM_ASSIGN_OR_RETURN(auto x, MakeX());
#define TANDEM_ASSIGN_OR_RETURN(lhs, expr) \
  TANDEM_ASSIGN_OR_RETURN_IMPL_(TANDEM_CONCAT_(tandem_status_or_, __LINE__), lhs, expr)
#define TANDEM_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)

// Prints file, line and condition and aborts if `condition` is false. Only for bugs in this program, never
// for checking input. TANDEM_CHECK_MSG also prints `detail`.
#define TANDEM_CHECK(condition) \
  ((condition) ? (void)0 : ::tandem::internal::CheckFailed(__FILE__, __LINE__, #condition, ""))
#define TANDEM_CHECK_MSG(condition, detail) \
  ((condition) ? (void)0 : ::tandem::internal::CheckFailed(__FILE__, __LINE__, #condition, (detail)))

#endif  // TANDEM_BASE_STATUS_H_
