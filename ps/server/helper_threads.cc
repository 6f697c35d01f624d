// SPDX-License-Identifier: Apache-2.0
#include "ps/server/helper_threads.h"

#include <algorithm>

namespace tandem::ps {

HelperThreads::HelperThreads(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

HelperThreads::~HelperThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void HelperThreads::Share(absl::FunctionRef<void()> work) {
  if (threads_.empty()) return work();
  Job job{work};
  {
    absl::MutexLock lock(&mutex_);
    open_.push_back(&job);
  }
  work();
  absl::MutexLock lock(&mutex_);
  CloseLocked(&job);
  mutex_.Await(absl::Condition(&job, &Job::IsEmpty));
}

void HelperThreads::CloseLocked(const Job* job) {
  open_.erase(std::remove(open_.begin(), open_.end(), job), open_.end());
}

void HelperThreads::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &HelperThreads::HasWork));
    if (stopping_) return;
    Job* const job = open_.front();
    ++job->inside;
    mutex_.Unlock();
    job->work();
    mutex_.Lock();
    CloseLocked(job);  // its work is all begun: another helper would find nothing to do
    --job->inside;
  }
}

}  // namespace tandem::ps
