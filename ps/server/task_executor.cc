#include "ps/server/task_executor.h"

#include <utility>

#include "base/trace/trace.h"

namespace tandem::ps {

Executor::Executor(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      trace::NameThread("ps executor");
      Run();
    });
  }
}

Executor::~Executor() { Stop(); }

bool Executor::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void Executor::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Executor::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tandem::ps
