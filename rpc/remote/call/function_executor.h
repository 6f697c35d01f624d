#ifndef TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_
#define TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_

// The threads that run a worker's functions, and the queues before them.

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
  // Of calls that wait for a thread; further ones are refused.
  size_t max_queued = 16384;
  size_t max_queued_per_caller = 4096;
  size_t max_queued_bytes = size_t{1} << 30;  // of arguments; a single call may have more
  // For functions that run when nothing is left but to take away what they use.
  absl::Duration last_patience = absl::Minutes(1);
};

// Thread-safe. Callers take turns, a call each, however many calls each has waiting.
class FunctionExecutor {
 public:
  using Run = absl::AnyInvocable<void(const std::shared_ptr<Invocation>&) &&>;

  FunctionExecutor(std::string worker, const FunctionExecutorOptions& options);
  // As End.
  ~FunctionExecutor();

  // Queues a call; one that is refused is failed with ResourceExhausted. Of calls with the same `exclusive`,
  // if it is not empty, one runs at a time. A call that is cancelled, or late, when its turn comes is not
  // run.
  void Submit(std::shared_ptr<Invocation> call, const std::string& exclusive, Run run);
  // Work of our own, before all calls, with no limit. `what` it is outlives it.
  void Post(absl::string_view what, absl::AnyInvocable<void() &&> task);

  // Fails the calls that wait with Unavailable, and waits for those that run, `patience` at most. Then
  // DeadlineExceeded names them: no thread can be made to leave a function. May be repeated.
  absl::Status Stop(absl::Duration patience);
  // Stop for ever. Functions that do not return within `last_patience` would go on with what is gone: their
  // names are the process's last words.
  void End();
  size_t queued() const;
  // Waits until there are so many; false when `deadline` came first.
  bool AwaitQueued(size_t count, absl::Time deadline) const;

 private:
  struct Task {
    std::shared_ptr<Invocation> call;
    std::string exclusive;
    Run run;
    size_t bytes = 0;
    uint64_t queued = 0;  // trace::Begin
  };
  // A thread, and what it does.
  struct Worker {
    std::thread thread;
    std::string function;  // empty: nothing
    std::string caller;    // empty: it was posted
    absl::Time since;
    bool ended = false;
  };
  struct CallerQueue {
    std::deque<Task> tasks;
    size_t held = 0;  // with those that wait for an exclusive turn
  };

  void Work(Worker* self);
  std::string StillRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something was queued: sees to a thread for it.
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admit(const CallerQueue& queue, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next call to run, of the next caller; false when none can.
  bool Next(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(const std::string& caller, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string worker_;
  const FunctionExecutorOptions options_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::pair<absl::string_view, absl::AnyInvocable<void() &&>>> posted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, CallerQueue> callers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // callers with tasks, each once
  // Running exclusive groups, and what waits for them.
  absl::flat_hash_map<std::string, std::deque<Task>> exclusive_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> freed_ ABSL_GUARDED_BY(mutex_);  // of groups whose turn has come
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);  // started as they are needed
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUNCTION_EXECUTOR_H_
