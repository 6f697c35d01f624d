#include "rpc/remote/call/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tandem::rpc::remote {

Executor::Executor(std::string worker, const ExecutorOptions& options)
    : worker_(std::move(worker)), options_(options) {}

Executor::~Executor() { Stop(); }

absl::Status Executor::Admit(const CallerQueue& queue, size_t bytes) const {
  if (stop_) return absl::UnavailableError("the worker is shutting down");
  if (queued_ >= options_.max_queued) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue is full: ", queued_, " calls wait (AgentOptions::max_queued_calls); try again later"));
  }
  if (queue.held >= options_.max_queued_per_caller) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue has ", queue.held,
        " calls of this caller waiting (AgentOptions::max_queued_calls_per_caller); await some first"));
  }
  if (queued_ > 0 && queued_bytes_ + bytes > options_.max_queued_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue holds ", queued_bytes_, " bytes of arguments, and with ", bytes, " more it would pass ",
        options_.max_queued_bytes, " (AgentOptions::max_queued_bytes); try again later"));
  }
  return absl::OkStatus();
}

void Executor::Submit(std::shared_ptr<Invocation> call, const std::string& exclusive, Run run) {
  const size_t bytes = call->bytes();
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    CallerQueue& queue = callers_[call->caller()];
    refused = Admit(queue, bytes);
    if (refused.ok()) {
      if (queue.tasks.empty()) turns_.push_back(call->caller());
      queue.tasks.push_back({call, exclusive, std::move(run), bytes});
      ++queue.held;
      ++queued_;
      queued_bytes_ += bytes;
      WakeOne();
      return;
    }
    if (queue.held == 0) callers_.erase(call->caller());
  }
  call->Fail(std::move(refused));
}

void Executor::Post(absl::AnyInvocable<void() &&> task) {
  absl::MutexLock lock(&mutex_);
  if (stop_) return;
  posted_.push_back(std::move(task));
  WakeOne();
}

void Executor::WakeOne() {
  // One that is idle may have been woken for what came just before, and not be up yet.
  if (queued_ + posted_.size() > static_cast<size_t>(idle_) &&
      threads_.size() < static_cast<size_t>(options_.threads)) {
    threads_.emplace_back([this] { Work(); });
  } else {
    changed_.Signal();
  }
}

void Executor::Release(const std::string& caller, size_t bytes) {
  --queued_;
  queued_bytes_ -= bytes;
  const auto found = callers_.find(caller);
  if (--found->second.held == 0) callers_.erase(found);
}

bool Executor::Next(Task* task) {
  if (!freed_.empty()) {
    *task = std::move(freed_.front());
    freed_.pop_front();
    return true;
  }
  while (!turns_.empty()) {
    const std::string caller = std::move(turns_.front());
    turns_.pop_front();
    CallerQueue& queue = callers_[caller];
    *task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    if (!queue.tasks.empty()) turns_.push_back(caller);
    if (task->exclusive.empty()) {
      Release(caller, task->bytes);
      return true;
    }
    const auto [group, first] = exclusive_.try_emplace(task->exclusive);
    if (first) {
      Release(caller, task->bytes);
      return true;
    }
    group->second.push_back(std::move(*task));
  }
  return false;
}

void Executor::Work() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (!posted_.empty()) {
      absl::AnyInvocable<void()&&> posted = std::move(posted_.front());
      posted_.pop_front();
      mutex_.Unlock();
      std::move(posted)();
      posted = nullptr;
      mutex_.Lock();
      continue;
    }
    if (stop_) return;
    Task task;
    if (!Next(&task)) {
      ++idle_;
      changed_.Wait(&mutex_);
      --idle_;
      continue;
    }
    mutex_.Unlock();
    if (task.call->deadline() < absl::Now()) {
      task.call->Fail(absl::DeadlineExceededError(
          absl::StrCat("its deadline passed while it waited in the queue of ", worker_)));
    } else if (task.call->IsCancelled()) {
      task.call->Fail(
          absl::CancelledError(absl::StrCat("it was cancelled while it waited in the queue of ", worker_)));
    } else {
      std::move(task.run)(task.call);
    }
    task.call.reset();
    task.run = nullptr;
    mutex_.Lock();
    if (task.exclusive.empty()) continue;
    const auto group = exclusive_.find(task.exclusive);
    if (group->second.empty()) {
      exclusive_.erase(group);
      continue;
    }
    freed_.push_back(std::move(group->second.front()));
    group->second.pop_front();
    Release(freed_.back().call->caller(), freed_.back().bytes);
  }
}

void Executor::Stop() {
  std::vector<std::thread> threads;
  std::vector<Task> dropped;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    for (auto& [caller, queue] : callers_) {
      for (Task& task : queue.tasks) dropped.push_back(std::move(task));
      queue.tasks.clear();
    }
    turns_.clear();
    for (Task& task : freed_) dropped.push_back(std::move(task));
    freed_.clear();
    for (auto& [name, group] : exclusive_) {
      for (Task& task : group) dropped.push_back(std::move(task));
      group.clear();
    }
    callers_.clear();
    queued_ = queued_bytes_ = 0;
    threads.swap(threads_);
    changed_.SignalAll();
  }
  for (const Task& task : dropped) task.call->Fail(absl::UnavailableError("the worker is shutting down"));
  for (std::thread& thread : threads) thread.join();
}

size_t Executor::queued() const {
  absl::MutexLock lock(&mutex_);
  return queued_;
}

}  // namespace tandem::rpc::remote
