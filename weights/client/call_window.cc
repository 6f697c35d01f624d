// SPDX-License-Identifier: Apache-2.0
#include "weights/client/call_window.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tandem::weights {

absl::Status CallWindow::Start(absl::string_view method, Bytes request, OnResponse on_response) {
  if (absl::Status earlier = Await(most_ - 1); !earlier.ok()) return earlier;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->under_way.fetch_add(1);
  }
  channel_->CallAsync(
      method, std::move(request),
      {.timeout = std::max(end_ - MonotonicNow(), absl::Milliseconds(1)), .idempotent = true},
      [state = state_, on_response = std::move(on_response)](absl::StatusOr<Bytes> response) mutable {
        const absl::Status status =
            response.ok() ? std::move(on_response)(*response) : std::move(response).status();
        absl::MutexLock lock(&state->mutex);
        if (state->error.ok()) state->error = status;
        state->under_way.fetch_sub(1);
      });
  return absl::OkStatus();
}

absl::Status CallWindow::Await(int most) {
  const auto few = [state = state_.get(), most] { return state->under_way.load() <= most; };
  if (!few()) {
    channel_->PrepareInlinePoll();
    channel_->InlinePoll(few, end_);
  }
  absl::MutexLock lock(&state_->mutex, absl::Condition(&few));
  return state_->error;
}

}  // namespace tandem::weights
