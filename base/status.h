#ifndef TANDEM_BASE_STATUS_H_
#define TANDEM_BASE_STATUS_H_

// Small helpers around absl::Status. Debian 12's absl ships no status macros, so they stand here.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Returns `status` with "`context`: " put before its message; OK stays OK. The code and payloads are kept.
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

// Leaves the enclosing function with the status of `expr` unless it is OK.
#define TANDEM_RETURN_IF_ERROR(expr)                       \
  do {                                                     \
    auto&& tandem_status_ = (expr);                        \
    if (!tandem_status_.ok()) {                            \
      return ::tandem::internal::AsStatus(tandem_status_); \
    }                                                      \
  } while (false)

// TANDEM_ASSIGN_OR_RETURN(auto x, MakeX());
#define TANDEM_ASSIGN_OR_RETURN(lhs, expr) \
  TANDEM_ASSIGN_OR_RETURN_IMPL_(TANDEM_CONCAT_(tandem_status_or_, __LINE__), lhs, expr)
#define TANDEM_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)

// For our own bugs only: prints file, line and condition, then aborts. Never for input.
#define TANDEM_CHECK(condition) \
  ((condition) ? (void)0 : ::tandem::internal::CheckFailed(__FILE__, __LINE__, #condition, ""))
#define TANDEM_CHECK_MSG(condition, detail) \
  ((condition) ? (void)0 : ::tandem::internal::CheckFailed(__FILE__, __LINE__, #condition, (detail)))

#endif  // TANDEM_BASE_STATUS_H_
