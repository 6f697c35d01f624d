// SPDX-License-Identifier: Apache-2.0
#include "python/src/group_work.h"

#include <utility>

#include "absl/time/time.h"

namespace tandem::python {

void GroupWork::Begin(const std::shared_ptr<GroupWork>& self, collectives::Work work,
                      std::shared_ptr<std::atomic<int>> running) {
  self->work_ = std::move(work);
  running->fetch_add(1);
  // The callback owns `self`, and with it the tensors.
  self->work_.Then([self, running = std::move(running)](const absl::Status&) { running->fetch_sub(1); });
}

absl::Status GroupWork::CheckProcess() const {
  if (ForkGeneration() == made_ || work_.IsCompleted()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked while the operation was under way, and threads do not survive a fork; wait "
      "for it in "
      "the parent");
}

bool GroupWork::WaitFor(double seconds) const {
  if (work_.IsCompleted()) return true;
  (void)work_.Wait(absl::Seconds(seconds));
  return work_.IsCompleted();
}

void GroupWork::WhenFinished(std::shared_ptr<FinishedCalls> queue, uint64_t number) const {
  work_.Then([queue = std::move(queue), number](const absl::Status&) { queue->Add(number); });
}

}  // namespace tandem::python
