// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/work_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::collectives {
namespace internal {

void WorkState::Complete(absl::Status status, int source_rank) {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_CHECK(!completed_);
    completed_ = true;
    status_ = status;
    source_rank_ = source_rank;
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback(status);
}

absl::Status WorkState::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  if (completed_ || AwaitFor(&mutex_, absl::Condition(&completed_), timeout)) return status_;
  return absl::DeadlineExceededError(
      absl::StrCat("the operation still runs after ", absl::FormatDuration(timeout)));
}

bool WorkState::IsCompleted() {
  absl::MutexLock lock(&mutex_);
  return completed_;
}

absl::Status WorkState::status() {
  absl::MutexLock lock(&mutex_);
  return completed_ ? status_ : absl::UnavailableError("the operation still runs");
}

int WorkState::source_rank() {
  absl::MutexLock lock(&mutex_);
  return source_rank_;
}

void WorkState::Then(std::function<void(const absl::Status&)> callback) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!completed_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
    status = status_;
  }
  callback(status);
}

absl::Status WorkState::OrderStream(void* stream) {
  return device_ != nullptr ? device_->OrderStream(stream) : Wait(absl::InfiniteDuration());
}

}  // namespace internal

absl::Status Work::Wait(absl::Duration timeout) const {
  return state_ == nullptr ? status_ : state_->Wait(timeout);
}

bool Work::IsCompleted() const { return state_ == nullptr || state_->IsCompleted(); }

absl::Status Work::status() const { return state_ == nullptr ? status_ : state_->status(); }

int Work::source_rank() const { return state_ == nullptr ? source_rank_ : state_->source_rank(); }

void Work::Then(std::function<void(const absl::Status&)> callback) const {
  if (state_ == nullptr) {
    callback(status_);
  } else {
    state_->Then(std::move(callback));
  }
}

absl::Status Work::OrderStream(void* stream) const {
  return state_ == nullptr ? status_ : state_->OrderStream(stream);
}

}  // namespace tandem::collectives
