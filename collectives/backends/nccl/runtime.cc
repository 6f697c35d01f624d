// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/runtime.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "collectives/backends/nccl/link.h"

namespace tandem::collectives::nccl {
namespace {

// NCCL calls that hold the slot longer are considered hung; the abort that ends them does not wait for the
// slot.
constexpr absl::Duration kCallTimeout = absl::Seconds(2);

}  // namespace

Runtime::Runtime(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda, const Options& options)
    : nccl_(std::move(nccl)), cuda_(std::move(cuda)), options_(options), thread_([this] { Watch(); }) {}

Runtime::~Runtime() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool Runtime::TakeSlot(absl::Time deadline) {
  absl::MutexLock lock(&slot_mutex_);
  if (!AwaitUntil(&slot_mutex_, absl::Condition(&slot_free_), deadline)) return false;
  slot_free_ = false;
  return true;
}

void Runtime::ReleaseSlot() {
  absl::MutexLock lock(&slot_mutex_);
  slot_free_ = true;
}

void Runtime::Add(std::shared_ptr<Link> link) {
  absl::MutexLock lock(&mutex_);
  links_.push_back(std::move(link));
}

void Runtime::Remove(Link* link) {
  absl::MutexLock watching(&watch_mutex_);
  absl::MutexLock lock(&mutex_);
  links_.erase(
      std::remove_if(links_.begin(), links_.end(), [&](const auto& one) { return one.get() == link; }),
      links_.end());
}

std::vector<std::shared_ptr<Link>> Runtime::links() {
  absl::MutexLock lock(&mutex_);
  return links_;
}

void Runtime::AbortAll(Link* origin, const absl::Status& reason) {
  origin->MarkBroken(reason);
  for (const auto& link : links()) {
    if (link.get() == origin) continue;
    link->MarkBroken(absl::Status(
        reason.code(),
        absl::StrCat("group '", origin->group(),
                     "' of this process, which shares the GPU, was aborted: ", reason.message())));
  }
  absl::MutexLock lock(&mutex_);
  aborting_ = true;
}

void Runtime::Watch() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || aborting_; };
      AwaitFor(&mutex_, absl::Condition(&wake), options_.watch_interval);
      if (stopping_) return;
      aborting_ = false;
    }
    absl::MutexLock watching(&watch_mutex_);
    const std::vector<std::shared_ptr<Link>> all = links();
    std::vector<Link*> broken;
    for (const auto& link : all) {
      if (link->HasToAbort()) broken.push_back(link.get());
    }
    if (!broken.empty()) {
      ExecutionSlot slot(this, MonotonicNow() + kCallTimeout);
      nccl_->GroupStart();
      for (Link* link : broken) link->AbortCommunicator();
      nccl_->GroupEnd();
      for (Link* link : broken) link->SetAborted();
    }
    for (const auto& link : all) link->Watch();
  }
}

}  // namespace tandem::collectives::nccl
