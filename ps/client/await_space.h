// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_AWAIT_SPACE_H_
#define TANDEM_PS_CLIENT_AWAIT_SPACE_H_

// The wait of a call that cannot start yet, because too many are under way.

#include <algorithm>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/timed_wait.h"

namespace tandem::ps {

// Waits on `mutex`, which the caller holds, until `condition` holds, for at most `timeout`. Calls `go_on`
// about every 100 ms, without the mutex; null: waits in one go. Returns
//
//   - OK once the condition holds,
//   - DeadlineExceeded after `timeout`; the caller replaces the message,
//   - Cancelled if go_on() has returned false.
inline absl::Status AwaitSpace(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout,
                               const std::function<bool()>& go_on) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr absl::Duration kSlice = absl::Milliseconds(100);
  for (;;) {
    const absl::Duration slice = go_on ? std::min(timeout, kSlice) : timeout;
    if (condition.Eval() || (slice > absl::ZeroDuration() && AwaitFor(mutex, condition, slice))) {
      return absl::OkStatus();
    }
    timeout -= slice;
    if (timeout <= absl::ZeroDuration()) return absl::DeadlineExceededError("no space");
    mutex->Unlock();
    const bool goes_on = go_on();
    mutex->Lock();
    if (!goes_on) {
      return absl::CancelledError(
          "the call was interrupted while it waited for earlier ones to end; nothing was sent");
    }
  }
}

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_AWAIT_SPACE_H_
