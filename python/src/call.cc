// SPDX-License-Identifier: Apache-2.0
#include "python/src/call.h"

#include <utility>

#include "base/timed_wait.h"

namespace nb = nanobind;

namespace tandem::python {

Call::Call(std::vector<nb::object> keep, std::shared_ptr<ReleasedObjects> released)
    : keep_(std::move(keep)), released_(std::move(released)) {}

Call::~Call() {
  if (!keep_.empty()) released_->Add(std::move(keep_));
}

absl::Status Call::CheckProcess() const {
  if (ForkGeneration() == made_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked after the call had started, and threads do not survive a fork; the parent has "
      "the result");
}

void Call::Finish(absl::StatusOr<ps::PullVersions> result) {
  std::function<void()> then;
  {
    absl::MutexLock lock(&mutex_);
    result_ = std::move(result);
    finished_ = true;
    done_.store(true, std::memory_order_release);
    then = std::move(then_);
  }
  if (then) then();
}

bool Call::WaitFor(double seconds) const {
  absl::MutexLock lock(&mutex_);
  return AwaitFor(&mutex_, absl::Condition(&finished_), absl::Seconds(seconds));
}

void Call::WhenFinished(std::function<void()> then) {
  {
    absl::MutexLock lock(&mutex_);
    if (!finished_) {
      then_ = std::move(then);
      return;
    }
  }
  then();
}

absl::StatusOr<ps::PullVersions> Call::result() const {
  absl::MutexLock lock(&mutex_);
  return result_;
}

void FinishedCalls::Add(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  numbers_.push_back(number);
}

std::vector<uint64_t> FinishedCalls::Take() {
  absl::MutexLock lock(&mutex_);
  const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closed_ || !numbers_.empty(); };
  mutex_.Await(absl::Condition(&any));
  return std::exchange(numbers_, {});
}

void FinishedCalls::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

}  // namespace tandem::python
