// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/shared_failure_state.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::collectives::tcp {
namespace {

// "<code> <message>"
absl::optional<absl::Status> Parse(const std::string& text) {
  const size_t space = text.find(' ');
  int code = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &code) || code < 1 ||
      code > 16) {
    return absl::nullopt;
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text.substr(space + 1));
}

}  // namespace

void SharedFailureState::Record(const absl::Status& reason) {
  if (!reachable_) return;
  (void)store_.Set(absl::StrCat(rank_), absl::StrCat(static_cast<int>(reason.code()), " ", reason.message()));
}

absl::optional<SharedFailureState::Found> SharedFailureState::Find(absl::Span<const int> ranks,
                                                                   absl::Duration grace) {
  const absl::Time deadline = MonotonicNow() + grace;
  // First look at ranks that have stored a reason already, then wait for each that has not.
  for (const bool waiting : {false, true}) {
    for (int rank : ranks) {
      if (!reachable_) return absl::nullopt;
      const absl::Duration wait =
          waiting ? std::max(deadline - MonotonicNow(), absl::ZeroDuration()) : absl::ZeroDuration();
      absl::StatusOr<std::string> text = store_.Get(absl::StrCat(rank), wait);
      if (text.ok()) {
        if (absl::optional<absl::Status> reason = Parse(*text)) return Found{rank, *std::move(reason)};
      } else if (text.status().code() != absl::StatusCode::kDeadlineExceeded) {
        reachable_ = false;
      }
    }
  }
  return absl::nullopt;
}

}  // namespace tandem::collectives::tcp
