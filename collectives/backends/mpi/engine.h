#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_

// The one thread of this process that calls MPI, so that MPI_THREAD_SERIALIZED is enough for any number of
// groups. Everything it does for them is non-blocking: no group waits for another.
//
// MPI is initialised once in a process and never again after MPI_Finalize: the engine is therefore one per
// process, as MPI is. Where the program has called MPI_Init_thread, it also calls MPI_Finalize, when its
// groups are gone; otherwise the engine calls MPI_Init_thread when the first group is made, and MPI_Finalize
// when the process exits. Groups hold the engine; it runs until exit.

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

// What goes on in MPI until it is over. Whatever memory MPI may touch belongs to it.
class Activity {
 public:
  virtual ~Activity() = default;
  // On the engine's thread; must not block. True: over, to be dropped.
  virtual bool Poll() = 0;
  // Polled every kIdlePoll only, while nothing but such activities is left.
  virtual bool background() const { return false; }
};

// OK, or Unavailable with MPI's own words. Only where MPI is initialised.
absl::Status FromMpi(int error, absl::string_view call);

// Thread-safe.
class Engine {
 public:
  // The engine of this process, with MPI initialised. Errors: FailedPrecondition when MPI was initialised
  // with too low a thread level, or is finalised; DeadlineExceeded.
  static absl::StatusOr<std::shared_ptr<Engine>> Get(absl::Time deadline);

  explicit Engine() = default;
  ~Engine();

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  int largest_tag() const { return largest_tag_; }

  void Add(std::shared_ptr<Activity> activity);
  // Runs a blocking MPI call on the thread. DeadlineExceeded: it goes on there, and so no other can begin.
  absl::Status Call(absl::string_view what, std::function<absl::Status()> body, absl::Time deadline);

 private:
  absl::Status Start(absl::Time deadline);
  absl::Status Initialize();
  void Finish();
  void Loop();
  // Waits for something to do, after `idle` without progress.
  void Rest(bool foreground, bool background, absl::Duration idle);

  static constexpr absl::Duration kIdlePoll = absl::Milliseconds(100);

  int world_rank_ = -1, world_size_ = 0, largest_tag_ = 0;  // constant once started
  bool finalize_ = false;                                   // the thread's alone
  std::atomic<bool> has_new_{false};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<std::shared_ptr<Activity>> new_ ABSL_GUARDED_BY(mutex_);
  std::string stuck_in_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Activity>> running_;  // the thread's alone
  std::thread thread_;
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_ENGINE_H_
