// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/gloo/operation_guard.h"

#include <utility>

#include "base/timed_wait.h"

namespace tandem::collectives::gloo_library {

void OperationGuard::Begin(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  deadline_ = deadline;
  late_.clear();
}

absl::Time OperationGuard::deadline() const {
  absl::MutexLock lock(&mutex_);
  return deadline_;
}

void OperationGuard::Stop(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (!stopped_.ok()) return;
  stopped_ = reason;
  for (Waiter* waiter : waiters_) waiter->Interrupt();
}

absl::Status OperationGuard::stopped() const {
  absl::MutexLock lock(&mutex_);
  return stopped_;
}

absl::Status OperationGuard::AwaitStop(absl::Duration grace) const {
  absl::MutexLock lock(&mutex_);
  auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !stopped_.ok(); };
  AwaitFor(&mutex_, absl::Condition(&over), grace);
  return stopped_;
}

bool OperationGuard::Add(Waiter* waiter) {
  absl::MutexLock lock(&mutex_);
  if (!stopped_.ok()) return false;
  waiters_.insert(waiter);
  return true;
}

void OperationGuard::Remove(Waiter* waiter) {
  absl::MutexLock lock(&mutex_);
  waiters_.erase(waiter);
}

void OperationGuard::NoteLate(std::vector<int> ranks) {
  absl::MutexLock lock(&mutex_);
  late_ = std::move(ranks);
}

std::vector<int> OperationGuard::late() const {
  absl::MutexLock lock(&mutex_);
  return late_;
}

}  // namespace tandem::collectives::gloo_library
