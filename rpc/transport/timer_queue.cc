// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/timer_queue.h"

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"

namespace tandem::rpc {

TimerQueue::~TimerQueue() { Stop(); }

void TimerQueue::Stop() {
  std::thread thread;
  std::map<Id, Task> dropped;  // the tasks' captures are destroyed after the lock is released
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    thread = std::move(thread_);
    dropped.swap(tasks_);
    changed_.Signal();
  }
  if (thread.joinable()) thread.join();
}

TimerQueue::Id TimerQueue::Schedule(absl::Time when, Task task) {
  absl::MutexLock lock(&mutex_);
  return Add(when, std::move(task));
}

void TimerQueue::RunSoon(Task task) {
  absl::MutexLock lock(&mutex_);
  Add(MonotonicNow(), std::move(task));
}

TimerQueue::Id TimerQueue::Add(absl::Time when, Task&& task) {
  const Id id(when, next_++);
  if (stop_) return id;  // the caller destroys the task after releasing the lock
  tasks_.emplace(id, std::move(task));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  if (tasks_.begin()->first == id) changed_.Signal();
  return id;
}

void TimerQueue::Cancel(const Id& id) {
  Task dropped;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  dropped = std::move(found->second);
  tasks_.erase(found);
}

void TimerQueue::RunAllNow() {
  absl::MutexLock lock(&mutex_);
  hurry_ = true;
  changed_.Signal();
}

void TimerQueue::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    if (tasks_.empty()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const absl::Time due = tasks_.begin()->first.first;
    if (!hurry_ && due > MonotonicNow()) {
      tandem::WaitUntil(&changed_, &mutex_, due);
      continue;
    }
    {
      Task task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
      mutex_.Unlock();
      std::move(task)();
    }  // the task's captures are destroyed while the lock is released
    mutex_.Lock();
  }
}

}  // namespace tandem::rpc
