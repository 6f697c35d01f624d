#ifndef TANDEM_RPC_REMOTE_CALL_EXECUTOR_H_
#define TANDEM_RPC_REMOTE_CALL_EXECUTOR_H_

// The threads that run a worker's functions, and the queues before them.

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/remote/call/invocation.h"

namespace tandem::rpc::remote {

struct ExecutorOptions {
  int threads = 16;
  // Of calls that wait for a thread; further ones are refused.
  size_t max_queued = 16384;
  size_t max_queued_per_caller = 4096;
  size_t max_queued_bytes = size_t{1} << 30;  // of arguments; a single call may have more
};

// Thread-safe. Callers take turns, a call each, however many calls each has waiting.
class Executor {
 public:
  using Run = absl::AnyInvocable<void(const std::shared_ptr<Invocation>&) &&>;

  Executor(std::string worker, const ExecutorOptions& options);
  // Fails the calls that wait with Unavailable, and waits for those that run.
  ~Executor();

  // Queues a call; one that is refused is failed with ResourceExhausted. Of calls with the same `exclusive`,
  // if it is not empty, one runs at a time. A call that is cancelled, or late, when its turn comes is not
  // run.
  void Submit(std::shared_ptr<Invocation> call, const std::string& exclusive, Run run);
  // Work of our own, before all calls, with no limit.
  void Post(absl::AnyInvocable<void() &&> task);

  // As the destructor. Idempotent.
  void Stop();
  size_t queued() const;

 private:
  struct Task {
    std::shared_ptr<Invocation> call;
    std::string exclusive;
    Run run;
    size_t bytes = 0;
  };
  struct CallerQueue {
    std::deque<Task> tasks;
    size_t held = 0;  // with those that wait for an exclusive turn
  };

  void Work();
  // Something was queued: sees to a thread for it.
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admit(const CallerQueue& queue, size_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next call to run, of the next caller; false when none can.
  bool Next(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(const std::string& caller, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string worker_;
  const ExecutorOptions options_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, CallerQueue> callers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // callers with tasks, each once
  // Running exclusive groups, and what waits for them.
  absl::flat_hash_map<std::string, std::deque<Task>> exclusive_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> freed_ ABSL_GUARDED_BY(mutex_);  // of groups whose turn has come
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);  // started as they are needed
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_EXECUTOR_H_
