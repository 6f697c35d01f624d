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
Runtime::Runtime(std::shared_ptr<NcclApi> nccl, std::shared_ptr<cuda::CudaApi> cuda, const Options& options)
    : nccl_(std::move(nccl)),
      cuda_(std::move(cuda)),
      options_(options),
      watch_thread_([this] { Watch(); }),
      exchange_thread_([this] { Exchange(); }) {}

Runtime::~Runtime() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  watch_thread_.join();
  exchange_thread_.join();
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
  {
    absl::MutexLock lock(&mutex_);
    auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exchanging_ != link; };
    mutex_.Await(absl::Condition(&idle));
    links_.erase(
        std::remove_if(links_.begin(), links_.end(), [&](const auto& one) { return one.get() == link; }),
        links_.end());
  }
  absl::MutexLock watching(&watch_mutex_);  // the watching thread has dropped its copy of links_
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
  Wake();
}

void Runtime::AbortOne(Link* link, const absl::Status& reason) {
  link->MarkBroken(reason);
  Wake();
}

void Runtime::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

void Runtime::Exchange() {
  for (;;) {
    std::vector<Link*> all;
    {
      absl::MutexLock lock(&mutex_);
      AwaitFor(&mutex_, absl::Condition(&stopping_), options_.watch_interval);
      if (stopping_) return;
      for (const auto& link : links_) all.push_back(link.get());
    }
    // Remove waits for exchanging_, so that the link lives, and this thread never holds the last reference
    // to a link, and with it to this runtime.
    for (Link* link : all) {
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) return;
        const bool present =
            std::any_of(links_.begin(), links_.end(), [&](const auto& one) { return one.get() == link; });
        if (!present) continue;
        exchanging_ = link;
      }
      link->ExchangeErrors();
      absl::MutexLock lock(&mutex_);
      exchanging_ = nullptr;
    }
  }
}

void Runtime::Watch() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || woken_; };
      AwaitFor(&mutex_, absl::Condition(&wake), options_.watch_interval);
      if (stopping_) return;
      woken_ = false;
    }
    absl::MutexLock watching(&watch_mutex_);
    const std::vector<std::shared_ptr<Link>> all = links();
    std::vector<Link*> broken;
    for (const auto& link : all) {
      if (link->HasToAbort()) broken.push_back(link.get());
    }
    if (!broken.empty()) {
      ExecutionSlot slot(this, MonotonicNow() + options_.call_timeout);
      nccl_->GroupStart();
      for (Link* link : broken) link->AbortCommunicator();
      nccl_->GroupEnd();
      for (Link* link : broken) link->SetAborted();
    }
    for (const auto& link : all) link->Watch();
  }
}

}  // namespace tandem::collectives::nccl
