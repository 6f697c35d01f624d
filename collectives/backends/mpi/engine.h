// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_

// Engine owns the one thread of this process that calls MPI, so that MPI_THREAD_SERIALIZED is enough for any
// number of groups. All its calls for groups are non-blocking: no group waits for another.
//
// MPI can be initialised once in a process, and never again after MPI_Finalize; so there is one engine per
// process. If the program has called MPI_Init_thread, it also calls MPI_Finalize, when its groups are gone.
// Otherwise the engine calls MPI_Init_thread when the first group is made, and MPI_Finalize when the process
// exits. Groups hold the engine; it runs until exit.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::collectives::mpi {

// An MPI operation that runs until Poll reports its end. It owns all memory that MPI may touch.
class Activity {
 public:
  virtual ~Activity() = default;
  // Advances the activity. Called on the engine's thread; must not block. Returns true once it is over and
  // can be destroyed.
  virtual bool Poll() = 0;
  // Returns true if the activity needs polling only every kIdlePoll while all remaining activities are of
  // this kind.
  virtual bool background() const { return false; }
};

class CallActivity;

// Returns OK, or Unavailable with MPI's error text. Requires that MPI is initialised.
absl::Status FromMpi(int error, absl::string_view call);

// Thread-safe.
class Engine {
 public:
  // Returns the engine of this process, with MPI initialised. Errors: FailedPrecondition if MPI was
  // initialised with too low a thread level, or is finalised; DeadlineExceeded if MPI_Init_thread has not
  // returned, after which a later call waits for the same MPI_Init_thread.
  static absl::StatusOr<std::shared_ptr<Engine>> Get(absl::Time deadline);

  explicit Engine() = default;
  ~Engine();

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  int largest_tag() const { return largest_tag_; }

  void Add(std::shared_ptr<Activity> activity);
  // Runs a blocking MPI call on the engine's thread. After DeadlineExceeded the call continues there; until
  // it has returned, other calls are refused with Unavailable.
  absl::Status Call(absl::string_view what, std::function<absl::Status()> body, absl::Time deadline);

  // Starts the thread, on which `initialize` runs first.
  void Start(std::function<absl::Status()> initialize);
  // Waits for `initialize` and returns its status; DeadlineExceeded at `deadline`.
  absl::Status AwaitStarted(absl::Time deadline);
  // Ends the thread once the call in progress has returned. If it does not return in time, the thread is left
  // to itself and the engine must not be destroyed.
  void Finish();

 private:
  absl::Status Initialize();
  void Loop();
  // Waits for work, after `idle` without progress.
  void WaitForWork(bool foreground, bool background, absl::Duration idle);

  static constexpr absl::Duration kIdlePoll = absl::Milliseconds(100);

  int world_rank_ = -1, world_size_ = 0, largest_tag_ = 0;  // constant once started
  bool finalize_ = false;                                   // used by the thread only
  std::atomic<bool> has_new_{false};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<std::shared_ptr<Activity>> new_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CallActivity> start_;                          // constant after Start
  std::shared_ptr<CallActivity> stuck_ ABSL_GUARDED_BY(mutex_);  // a call whose caller has given up
  std::string stuck_in_ ABSL_GUARDED_BY(mutex_);                 // its name
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Activity>> running_;  // used by the thread only
  std::thread thread_;
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_
