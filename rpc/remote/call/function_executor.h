// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_
#define TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_

// The threads that run a worker's functions, and the queues of waiting calls.

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/remote/call/invocation.h"

namespace tandem::rpc::remote {

struct FunctionExecutorOptions {
  int threads = 16;
  // Limits of the calls that wait for a thread. Further calls are refused.
  size_t max_queued = 16384;
  size_t max_queued_per_caller = 4096;
  size_t max_queued_bytes = size_t{1} << 30;  // of arguments; a single call may have more
  // The longest time for which End waits for running functions.
  absl::Duration end_timeout = absl::Minutes(1);
};

// Runs calls on a pool of threads. The threads serve the callers in turn, one call of each, so that a caller
// with many waiting calls does not delay the others. Thread-safe.
class FunctionExecutor {
 public:
  using Run = absl::AnyInvocable<void(const std::shared_ptr<Invocation>&) &&>;

  FunctionExecutor(std::string worker, const FunctionExecutorOptions& options);
  // Calls End.
  ~FunctionExecutor();

  // Queues a call. Of the calls with the same non-empty `exclusive`, one runs at a time. A call fails,
  // without being run, with
  //
  // - ResourceExhausted: a limit of the options is exceeded
  // - Unavailable: Stop has been called
  // - DeadlineExceeded or Cancelled: its deadline has passed, or it was cancelled, before a thread took it
  void Submit(std::shared_ptr<Invocation> call, const std::string& exclusive, Run run);
  // Queues work of the runtime. It runs before all waiting calls and is not limited. Dropped after Stop.
  // `what` names the work and must outlive it.
  void Post(absl::string_view what, absl::AnyInvocable<void() &&> task);

  // Fails the waiting calls with Unavailable and waits for the running ones for at most `timeout`. Returns
  // DeadlineExceeded with their names if some still run then: a thread cannot be made to leave a function.
  // May be called again.
  absl::Status Stop(absl::Duration timeout);
  // Stops the executor for good. Waits a second, then up to options.end_timeout for running functions. If
  // some still run, ends the process with a message that names them, because they would use destroyed
  // objects.
  void End();
  // Returns the number of calls that wait for a thread.
  size_t queued() const;
  // Waits until exactly `count` calls wait. Returns false if `deadline` comes first.
  bool AwaitQueued(size_t count, absl::Time deadline) const;

 private:
  struct Task {
    std::shared_ptr<Invocation> call;
    std::string exclusive;
    Run run;
    size_t bytes = 0;
    uint64_t queued = 0;  // the time of queueing (trace::Begin)
  };
  // A thread and what it runs.
  struct Worker {
    std::thread thread;
    std::string function;  // empty: nothing
    std::string caller;    // empty: posted work
    absl::Time since;
    bool ended = false;
  };
  struct CallerQueue {
    std::deque<Task> tasks;
    size_t held = 0;  // waiting calls, including those of busy exclusive groups
  };

  void Work(Worker* self);
  // Returns the running functions, for a message.
  std::string StillRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Provides a thread for something that was queued: starts one or wakes one.
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the reason if the limits refuse a call.
  absl::Status Admit(const CallerQueue& queue, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the next call to run, of the next caller in turn. Returns false if there is none.
  bool Next(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a call from the counts of waiting calls.
  void Release(const std::string& caller, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string worker_;
  const FunctionExecutorOptions options_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::pair<absl::string_view, absl::AnyInvocable<void() &&>>> posted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, CallerQueue> callers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ready_callers_ ABSL_GUARDED_BY(mutex_);  // callers with tasks, each once
  // The exclusive groups with a running call, and the calls that wait for it to end.
  absl::flat_hash_map<std::string, std::deque<Task>> exclusive_ ABSL_GUARDED_BY(mutex_);
  // Calls whose exclusive group has become free.
  std::deque<Task> runnable_exclusive_ ABSL_GUARDED_BY(mutex_);
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);  // started when they are needed
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_
