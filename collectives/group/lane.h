// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_LANE_H_
#define TANDEM_COLLECTIVES_GROUP_LANE_H_

// A Lane is one backend of a group together with the order of its operations. A group has one lane for each
// kind of device.
//
// The turn is the right to call Backend::Run; one operation at a time has it. A synchronous call that finds
// no other call takes the turn with one compare-and-swap and runs in its own thread. Otherwise calls queue,
// and each gets the turn from its predecessor: a synchronous call in the thread that waits for it, an
// asynchronous call in the lane's own thread, which the first asynchronous call starts.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/backend.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/group/health.h"
#include "collectives/group/task.h"

namespace tandem::collectives {

// Thread-safe, except that Close is called once, and nothing but Abort and FailQueued may begin after it.
class Lane {
 public:
  struct Options {
    Device::Kind device = Device::Kind::kCpu;
    std::string backend_name;
    std::vector<std::unique_ptr<cluster::Store>> stores;  // used by the backend alone
    std::unique_ptr<Backend> backend;
    Health* health = nullptr;  // of the group; must outlive the lane
    std::shared_ptr<FlightRecorder> recorder;
    uint32_t record_group = 0;
    // Called without locks by the first operation that failed and broke the group.
    std::function<void()> on_broken;
  };
  explicit Lane(Options options);
  ~Lane();

  Device::Kind device() const { return options_.device; }
  const std::string& backend_name() const { return options_.backend_name; }
  uint32_t record_group() const { return options_.record_group; }
  // Returns Backend::Supports.
  absl::Status Supports(const Operation& operation) const { return backend_->Supports(operation); }

  // Run the operations when they get the turn, and block until they are done. The wait for the turn has no
  // deadline of its own, since each operation before ends by its time-out. The arguments are borrowed. Like
  // all functions that return a Work, they return the group's error in it if the group is broken.
  Work Run(Operation* operation);
  Work Run(Task* task);
  // Queues the task and returns its Work; does not wait for the task.
  Work Enqueue(std::unique_ptr<Task> task);

  // Run a send or recv, without the turn. RunPointToPoint blocks until it is done, StartPointToPoint does
  // not. `operation` is used only during the call.
  Work RunPointToPoint(Operation* operation);
  Work StartPointToPoint(Operation* operation);
  // Starts the operations as one batch, for devices with streams; returns one Work each.
  std::vector<Work> EnqueueBatch(absl::Span<Operation> operations);

  // Call Backend::CanSplit, and Backend::Split in the order of the group's operations.
  bool CanSplit() const { return backend_->CanSplit(); }
  absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options);

  // Call Backend::RegisterBuffer and DeregisterBuffer in the order of the group's operations.
  absl::Status RegisterBuffer(TensorView buffer);
  absl::Status DeregisterBuffer(TensorView buffer);

  // Completes all queued operations that have not begun with the group's error.
  void FailQueued();
  // Calls Backend::Abort; no effect after Close.
  void AbortBackend(const absl::Status& reason);
  // Waits for the turn behind all queued operations and keeps it, so that no operation begins any more.
  void WaitForQueued();
  // Frees the backend. Requires WaitForQueued and a broken group. Waits first for running point-to-point
  // operations; after `drain_timeout` it aborts them. Operations on a device end by their own time-outs.
  void Close(absl::Duration drain_timeout);

 private:
  // A thread that waits for its turn; lives on that thread's stack.
  struct Waiter {
    bool granted = false;
    bool failed = false;
    bool last = false;  // WaitForQueued: FailQueued leaves it in the queue
    absl::CondVar turn;
  };
  struct Queued {
    Waiter* waiter = nullptr;
    std::unique_ptr<Task> task;  // set if no thread waits
  };
  // An operation that runs on a device after it was issued.
  struct Watched {
    absl::Status failure;                // of issuing it
    std::shared_ptr<DeviceWork> device;  // nullptr: done
    absl::Duration timeout;              // counts from when it begins to run
    std::vector<uint64_t> records;
    std::vector<std::shared_ptr<internal::WorkState>> works;
  };

  // Takes the turn, and `count` sequence numbers beginning with *sequence. Returns false if the group is
  // broken.
  bool TakeTurn(uint64_t count, uint64_t* sequence);
  bool TakeTurnBehindOthers(uint64_t count, uint64_t* sequence, bool last);
  // Takes `count` sequence numbers. Returns true if the turn was free and is taken; otherwise marks that a
  // call is queued.
  bool TakeNumbers(uint64_t count, uint64_t* sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes the turn on.
  void Release();
  void GrantNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status RunInTurn(Task* task);
  void RunTask(std::unique_ptr<Task> task);
  // Issues a batch on a device. Returns its Work or, in *each, one Work for every operation.
  Work RunOnDevice(absl::Span<Operation> operations, bool wait, std::vector<Work>* each);
  absl::Status FinishOnDevice(Watched* watched);
  // Returns true if `error` is the group's first: the caller completes its operation and then calls
  // options_.on_broken.
  bool Break(const absl::Status& error) { return options_.health->Break(error); }
  // Bracket everything that runs without the turn. BeginConcurrent returns false if the group is broken.
  bool BeginConcurrent();
  void EndConcurrent();
  uint64_t Record(const Operation& operation);
  void EndRecord(uint64_t record, const absl::Status& status);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();

  Options options_;
  // Reset by Close, when no operation has the turn or is running; constant otherwise.
  std::unique_ptr<Backend> backend_;

  // Bit 0: an operation has the turn. Bit 1: a call is queued (then bit 0 is set as well). Bits above: the
  // next sequence number. One word, so that taking the turn also takes the sequence number that belongs to
  // it.
  std::atomic<uint64_t> word_{0};
  std::atomic<uint64_t> next_point_to_point_{0};
  // Twice the number of operations that run without the turn, plus 1 once Close waits for them to end.
  std::atomic<uint64_t> concurrent_{0};

  absl::Mutex mutex_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Task> to_thread_ ABSL_GUARDED_BY(mutex_);  // has the turn; for the thread to run
  std::deque<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  bool concurrent_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int aborting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_LANE_H_
