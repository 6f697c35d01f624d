// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_PATIENCE_H_
#define TANDEM_WORKER_RL_ROLES_PATIENCE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/wait_log.h"

namespace tandem::rl {

// Bounds a wait that consists of many short ones, and says in the log every 30 s what is waited for and why
// it does not come. Not thread-safe.
class Patience {
 public:
  // `advice` ends the error: "are the actors alive?".
  Patience(absl::Duration longest, std::string advice) : longest_(longest), advice_(std::move(advice)) {}

  // Says that what was waited for has come.
  void Reset() { since_ = absl::InfiniteFuture(); }
  // Begins the wait for `what`, or goes on with it. `reason` says why the last short wait was in vain; OK: it
  // is not known. Returns DeadlineExceeded if the wait has lasted for `longest`.
  absl::Status Check(const std::string& what, const absl::Status& reason) {
    const absl::Time now = MonotonicNow();
    if (since_ == absl::InfiniteFuture()) since_ = now, next_line_ = now + kLogWaitsEvery;
    const bool over = now - since_ > longest_;
    if (!over && now < next_line_) return absl::OkStatus();
    next_line_ = now + kLogWaitsEvery;
    const std::string text =
        absl::StrCat(WaitText(what, now - since_), reason.ok() ? "" : ": ", reason.message());
    if (over) return absl::DeadlineExceededError(absl::StrCat(text, "; ", advice_));
    LogWarning(text);
    return absl::OkStatus();
  }

 private:
  const absl::Duration longest_;
  const std::string advice_;
  absl::Time since_ = absl::InfiniteFuture(), next_line_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_PATIENCE_H_
