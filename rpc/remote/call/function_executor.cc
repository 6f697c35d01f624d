// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/function_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "base/trace/recorder.h"

namespace tandem::rpc::remote {
namespace {
// Functions that check IsCancelled have returned by then.
constexpr absl::Duration kFirstStopTimeout = absl::Seconds(1);
}  // namespace

FunctionExecutor::FunctionExecutor(std::string worker, const FunctionExecutorOptions& options)
    : worker_(std::move(worker)), options_(options) {}

FunctionExecutor::~FunctionExecutor() { End(); }

absl::Status FunctionExecutor::Admit(const CallerQueue& queue, size_t bytes) const {
  if (stop_) return absl::UnavailableError("the worker is shutting down");
  if (queued_ >= options_.max_queued) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue is full: ", queued_, " calls wait (RpcAgentOptions::max_queued_calls); try again later"));
  }
  if (queue.held >= options_.max_queued_per_caller) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue has ", queue.held,
        " calls of this caller waiting (RpcAgentOptions::max_queued_calls_per_caller); await some first"));
  }
  if (queued_ > 0 && queued_bytes_ + bytes > options_.max_queued_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its queue holds ", queued_bytes_, " bytes of arguments, and with ", bytes, " more it would pass ",
        options_.max_queued_bytes, " (RpcAgentOptions::max_queued_bytes); try again later"));
  }
  return absl::OkStatus();
}

void FunctionExecutor::Submit(std::shared_ptr<Invocation> call, const std::string& exclusive, Run run) {
  const size_t bytes = call->bytes();
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    CallerQueue& queue = callers_[call->caller()];
    refused = Admit(queue, bytes);
    if (refused.ok()) {
      if (queue.tasks.empty()) ready_callers_.push_back(call->caller());
      queue.tasks.push_back({call, exclusive, std::move(run), bytes, trace::Begin()});
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

void FunctionExecutor::Post(absl::string_view what, absl::AnyInvocable<void() &&> task) {
  absl::MutexLock lock(&mutex_);
  if (stop_) return;
  posted_.emplace_back(what, std::move(task));
  WakeOne();
}

void FunctionExecutor::WakeOne() {
  // An idle thread may have been woken for an earlier task and not be running yet.
  if (queued_ + posted_.size() > static_cast<size_t>(idle_) &&
      workers_.size() < static_cast<size_t>(options_.threads)) {
    Worker* const worker = &workers_.emplace_back();
    worker->thread = std::thread([this, worker] {
      trace::NameThread("functions");
      Work(worker);
    });
  } else {
    changed_.Signal();
  }
}

void FunctionExecutor::Release(const std::string& caller, size_t bytes) {
  --queued_;
  queued_bytes_ -= bytes;
  const auto found = callers_.find(caller);
  if (--found->second.held == 0) callers_.erase(found);
}

bool FunctionExecutor::Next(Task* task) {
  if (!runnable_exclusive_.empty()) {
    *task = std::move(runnable_exclusive_.front());
    runnable_exclusive_.pop_front();
    return true;
  }
  while (!ready_callers_.empty()) {
    const std::string caller = std::move(ready_callers_.front());
    ready_callers_.pop_front();
    CallerQueue& queue = callers_[caller];
    *task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    if (!queue.tasks.empty()) ready_callers_.push_back(caller);
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

void FunctionExecutor::Work(Worker* self) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    self->function.clear();
    if (!posted_.empty()) {
      auto [what, posted] = std::move(posted_.front());
      posted_.pop_front();
      self->function.assign(what.data(), what.size());
      self->caller.clear();
      self->since = MonotonicNow();
      mutex_.Unlock();
      const uint64_t begun = trace::Begin();
      std::move(posted)();
      trace::EndNamed(what, "function", begun);
      posted = nullptr;
      mutex_.Lock();
      continue;
    }
    if (stop_) break;
    Task task;
    if (!Next(&task)) {
      ++idle_;
      changed_.Wait(&mutex_);
      --idle_;
      continue;
    }
    const absl::Time now = MonotonicNow();
    const absl::string_view function = task.call->function();
    self->function.assign(function.data(), function.size());
    self->caller = task.call->caller();
    self->since = now;
    mutex_.Unlock();
    if (task.call->deadline() < now) {
      task.call->Fail(absl::DeadlineExceededError(
          absl::StrCat("its deadline passed while it waited in the queue of ", worker_)));
    } else if (task.call->IsCancelled()) {
      task.call->Fail(
          absl::CancelledError(absl::StrCat("it was cancelled while it waited in the queue of ", worker_)));
    } else {
      trace::EndNamed(function, "queued function", task.queued);
      const uint64_t begun = trace::Begin();
      std::move(task.run)(task.call);
      trace::EndNamed(function, "function", begun);
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
    runnable_exclusive_.push_back(std::move(group->second.front()));
    group->second.pop_front();
    Release(runnable_exclusive_.back().call->caller(), runnable_exclusive_.back().bytes);
  }
  self->ended = true;
}

std::string FunctionExecutor::StillRunning() const {
  std::vector<std::string> running;
  const absl::Time now = MonotonicNow();
  for (const Worker& worker : workers_) {
    if (worker.function.empty()) continue;
    const std::string whose = worker.caller.empty() ? "" : absl::StrCat(" of ", worker.caller);
    running.push_back(
        absl::StrCat(worker.function, whose, " (for ", absl::FormatDuration(now - worker.since), ")"));
  }
  return absl::StrJoin(running, ", ");
}

absl::Status FunctionExecutor::Stop(absl::Duration timeout) {
  std::vector<Task> dropped;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    for (auto& [caller, queue] : callers_) {
      for (Task& task : queue.tasks) dropped.push_back(std::move(task));
      queue.tasks.clear();
    }
    ready_callers_.clear();
    for (Task& task : runnable_exclusive_) dropped.push_back(std::move(task));
    runnable_exclusive_.clear();
    for (auto& [name, group] : exclusive_) {
      for (Task& task : group) dropped.push_back(std::move(task));
      group.clear();
    }
    callers_.clear();
    queued_ = queued_bytes_ = 0;
    changed_.SignalAll();
  }
  for (const Task& task : dropped) task.call->Fail(absl::UnavailableError("the worker is shutting down"));
  std::list<Worker> ended;
  {
    absl::MutexLock lock(&mutex_);
    const auto all_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended; });
    };
    if (!AwaitFor(&mutex_, absl::Condition(&all_ended), timeout)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "functions that do not look whether they are cancelled (Context::IsCancelled) still run ",
          absl::FormatDuration(timeout), " after they were: ", StillRunning()));
    }
    ended.swap(workers_);
  }
  for (Worker& worker : ended) worker.thread.join();
  return absl::OkStatus();
}

void FunctionExecutor::End() {
  absl::Status stopped = Stop(kFirstStopTimeout);
  if (!stopped.ok()) {
    LogWarning(absl::StrCat(worker_, " waits, ", absl::FormatDuration(options_.end_timeout),
                            " at most: ", stopped.message()));
    stopped = Stop(options_.end_timeout);
  }
  TANDEM_CHECK_MSG(stopped.ok(), absl::StrCat(worker_, ": ", stopped.message()));
}

size_t FunctionExecutor::queued() const {
  absl::MutexLock lock(&mutex_);
  return queued_;
}

bool FunctionExecutor::AwaitQueued(size_t count, absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return queued_ == count; };
  return AwaitUntil(&mutex_, absl::Condition(&there), deadline);
}

}  // namespace tandem::rpc::remote
