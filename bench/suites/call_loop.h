#ifndef TANDEM_BENCH_SUITES_CALL_LOOP_H_
#define TANDEM_BENCH_SUITES_CALL_LOOP_H_

// A worker that keeps a number of calls under way.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "bench/harness/ps_case.h"
#include "bench/suites/row_model.h"
#include "ps/client/client.h"

namespace tandem::bench {

// What a worker did in a while.
struct CallTimes {
  uint64_t keys = 0;
  double seconds = 0;                // from the first call to the last answer
  double cpu_seconds = 0;            // of this process
  std::vector<double> latencies_us;  // of each call
};

// Runs calls of one case: the blocking ones where one is in flight, else the asynchronous ones. One thread;
// answers come on others. `client`, `batches` and `model` outlive it.
class CallLoop {
 public:
  // Begins with the `first`-th batch. `check_responses`: nobody pushes meanwhile, and of each answer one row is
  // checked against the model.
  CallLoop(const PsCase& bench_case, ps::Client* client, const std::vector<std::vector<uint64_t>>& batches,
           size_t first, RowModel* model, bool check_responses);
  ~CallLoop();

  // Makes calls until `duration` is over and waits for their answers.
  absl::StatusOr<CallTimes> Run(absl::Duration duration);
  // Pulls `calls` batches, as many at a time as the case has in flight, and checks every row of every answer.
  absl::Status Verify(size_t calls);
  // How often each batch was pushed since the last call of it.
  std::vector<uint32_t> TakePushes();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    size_t batch = 0;
    bool pull = true;
    std::vector<float> rows;
    Clock::time_point begin, end;
    absl::Status status;
  };

  void Start(Slot* slot, bool pull);
  Slot* WaitForOne();
  absl::Status CheckOneRow(const Slot& slot);
  bool HasDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !done_.empty(); }

  const PsCase case_;
  ps::Client* const client_;
  const std::vector<std::vector<uint64_t>>& batches_;
  RowModel* const model_;
  const bool check_responses_;
  std::shared_ptr<const std::vector<float>> gradients_;
  std::vector<Slot> slots_;
  size_t next_batch_;
  uint64_t calls_ = 0;
  std::vector<uint32_t> pushes_;  // by batch
  absl::Mutex mutex_;
  std::deque<Slot*> done_ ABSL_GUARDED_BY(mutex_);
  int outstanding_ = 0;
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_CALL_LOOP_H_
