// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_CALL_H_
#define TANDEM_PYTHON_SRC_CALL_H_

// A pull or push under way, as Python sees it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "nanobind/nanobind.h"
#include "ps/client/parts.h"
#include "python/src/process.h"

namespace tandem::python {

// Shared by Python, which waits, and by the callback that ends the call. Thread-safe.
class Call {
 public:
  // `keep` are the arrays that the call reads and writes. They live until the call has ended, even if Python
  // drops the object; `released` then takes them.
  Call(std::vector<nanobind::object> keep, std::shared_ptr<ReleasedObjects> released);
  ~Call();

  // Returns FailedPrecondition in a forked child of the process that started the call: no thread is there to
  // end it.
  absl::Status CheckProcess() const;

  // Ends the call. Needs no GIL. Called once.
  void Finish(absl::StatusOr<ps::PullVersions> result);

  // Takes no lock: a thread that polls may call it often.
  bool finished() const { return done_.load(std::memory_order_acquire); }
  // Blocks until the call has ended, at most `seconds`; returns whether it has ended. Call it without the
  // GIL.
  bool WaitFor(double seconds) const;
  // Runs `then` when the call has ended: on the thread that ends it, or now. At most one `then` a call.
  void WhenFinished(std::function<void()> then);
  // Returns the result. The call has ended.
  absl::StatusOr<ps::PullVersions> result() const;

 private:
  const uint64_t made_ = ForkGeneration();
  std::vector<nanobind::object> keep_;
  const std::shared_ptr<ReleasedObjects> released_;
  std::atomic<bool> done_{false};  // written under the mutex, after the result
  mutable absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusOr<ps::PullVersions> result_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> then_ ABSL_GUARDED_BY(mutex_);
};

// The calls that have ended, by numbers that Python chose, for the threads that fulfil futures. Thread-safe.
//
// Shared by C++, so that threads which end calls can drop it without the GIL.
class FinishedCalls : public std::enable_shared_from_this<FinishedCalls> {
 public:
  void Add(uint64_t number);
  // Blocks until a call has ended or Close was called; returns all that have ended, nothing after Close. Call
  // it without the GIL.
  std::vector<uint64_t> Take();
  void Close();

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_CALL_H_
