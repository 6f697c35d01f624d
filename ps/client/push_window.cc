// SPDX-License-Identifier: Apache-2.0
#include "ps/client/push_window.h"

#include "absl/strings/str_cat.h"
#include "ps/client/await_space.h"

namespace tandem::ps {

absl::StatusOr<PushWindow::Slot> PushWindow::Take(uint64_t step, absl::Duration timeout,
                                                  const std::function<bool()>& go_on) {
  absl::MutexLock lock(&mutex_);
  const absl::Status waited =
      AwaitSpace(&mutex_, absl::Condition(this, &PushWindow::HasSpace), timeout, go_on);
  if (absl::IsCancelled(waited)) return waited;
  if (!waited.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("push of step ", step, ": ", steps_.size(), " pushes are under way, the oldest of step ",
                     steps_.begin()->second, ", and the servers tell apart ", size_,
                     " in a row: wait until it has ended, or release its handle if it has failed"));
  }
  const uint64_t sequence = next_++;
  steps_.emplace(sequence, step);
  return Slot(shared_from_this(), epoch_, sequence);
}

void PushWindow::Release(uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  steps_.erase(sequence);
}

}  // namespace tandem::ps
