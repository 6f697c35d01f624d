#ifndef TANDEM_COLLECTIVES_GROUP_LANE_H_
#define TANDEM_COLLECTIVES_GROUP_LANE_H_

// One backend of a group and the order of its operations. A group has one lane for each kind of device.
//
// The order is kept by a turn: who has it may call Backend::Run. A synchronous call that finds nobody before
// it takes the turn with one compare-and-swap and runs in its own thread. Otherwise calls line up in a queue:
// each gets the turn from its predecessor, synchronous ones in the thread that waits for it, asynchronous
// ones in the lane's own thread, which is started by the first of them.

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
    std::vector<std::unique_ptr<Store>> stores;  // of the backend alone
    std::unique_ptr<Backend> backend;
    Health* health = nullptr;  // of the group
    std::shared_ptr<FlightRecorder> recorder;
    uint32_t record_group = 0;
    // An operation has failed and broken the group: the first one to do so. Called without locks.
    std::function<void()> on_broken;
  };
  explicit Lane(Options options);
  ~Lane();

  Device::Kind device() const { return options_.device; }
  const std::string& backend_name() const { return options_.backend_name; }
  uint32_t record_group() const { return options_.record_group; }
  absl::Status Supports(const Operation& operation) const { return backend_->Supports(operation); }

  // Runs it in this thread, in its turn.
  Work Run(Operation* operation);
  Work Run(Task* task);
  // Queues it; its Work.
  Work Enqueue(std::unique_ptr<Task> task);

  // Point to point, beside the queue.
  Work RunPointToPoint(Operation* operation);
  Work StartPointToPoint(Operation* operation);
  // As one batch, for devices with streams; one Work each.
  std::vector<Work> EnqueueBatch(absl::Span<Operation> operations);

  // Completes everything that is queued, and has not begun, with the group's error.
  void FailQueued();
  void AbortBackend(const absl::Status& reason);
  // Waits for the turn behind all that is queued and keeps it, so that no operation begins any more.
  void WaitForQueued();
  // After WaitForQueued, when the group has been broken: waits for what is under way point to point, for at
  // most `patience` before it is aborted, and frees the backend.
  void Close(absl::Duration patience);

 private:
  // A thread that waits for its turn; on its stack.
  struct Waiter {
    bool granted = false;
    bool failed = false;
    bool last = false;  // WaitForQueued: not failed with the others
    absl::CondVar turn;
  };
  struct Queued {
    Waiter* waiter = nullptr;
    std::unique_ptr<Task> task;  // where no thread waits
  };
  // An operation that a device goes on with.
  struct Watched {
    absl::Status failure;                // of issuing it
    std::shared_ptr<DeviceWork> device;  // nullptr: done
    absl::Time deadline;
    std::vector<uint64_t> records;
    std::vector<std::shared_ptr<internal::WorkState>> works;
  };

  // Takes the turn, and `count` sequence numbers from *sequence on. False if the group is broken.
  bool TakeTurn(uint64_t count, uint64_t* sequence);
  bool TakeTurnBehindOthers(uint64_t count, uint64_t* sequence, bool last);
  // Takes `count` numbers and either the turn, if nobody has it (true), or announces that somebody is queued.
  bool TakeNumbers(uint64_t count, uint64_t* sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes the turn on.
  void Release();
  void GrantNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status RunInTurn(Task* task);
  void RunTask(std::unique_ptr<Task> task);
  // Issues a batch on a device. Its Work; or, into *each, one for every operation.
  Work RunOnDevice(absl::Span<Operation> operations, bool wait, std::vector<Work>* each);
  absl::Status FinishOnDevice(Watched* watched);
  // True if `error` is the first: the caller completes its operation and then calls options_.on_broken.
  bool Break(const absl::Status& error) { return options_.health->Break(error); }
  // Around everything that is under way without the turn. False if the group is broken.
  bool BeginBeside();
  void EndBeside();
  uint64_t Record(const Operation& operation);
  void EndRecord(uint64_t record, const absl::Status& status);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();

  Options options_;
  // Reset by Close, when nobody has a turn or an operation under way; else constant.
  std::unique_ptr<Backend> backend_;

  // Bit 0: somebody has the turn. Bit 1: somebody is queued (then bit 0 is set as well). Above: the next
  // sequence number. In one word, so that who takes the turn has the number that belongs to it.
  std::atomic<uint64_t> word_{0};
  std::atomic<uint64_t> next_point_to_point_{0};
  // Twice the number of what is under way beside the turn, plus 1 once Close waits for it to end.
  std::atomic<uint64_t> beside_{0};

  absl::Mutex mutex_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Task> to_thread_ ABSL_GUARDED_BY(mutex_);  // has the turn
  std::deque<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  bool nothing_beside_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int aborting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_LANE_H_
