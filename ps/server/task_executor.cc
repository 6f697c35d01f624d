// SPDX-License-Identifier: Apache-2.0
#include "ps/server/task_executor.h"

#include <utility>

#include "base/trace/trace.h"

namespace tandem::ps {

TaskExecutor::TaskExecutor(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      trace::NameThread("ps executor");
      Run();
    });
  }
}

TaskExecutor::~TaskExecutor() { Stop(); }

bool TaskExecutor::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void TaskExecutor::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TaskExecutor::Run() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &TaskExecutor::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tandem::ps
