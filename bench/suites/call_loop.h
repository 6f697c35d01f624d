// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_CALL_LOOP_H_
#define TANDEM_BENCH_SUITES_CALL_LOOP_H_

// Makes the calls of a worker and keeps a number of them in flight.

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

// The calls that a worker made in a time window.
struct CallTimes {
  uint64_t keys = 0;
  double seconds = 0;                // from the first call to the last response
  double cpu_seconds = 0;            // processor time of this process
  std::vector<double> latencies_us;  // of each call
};

// Makes calls of one case: blocking calls if one is in flight, else asynchronous calls. Used by one thread;
// responses arrive on other threads. `client`, `batches` and `model` must outlive it.
class CallLoop {
 public:
  // Starts with batch `first`. With `check_responses` one row of each response is compared with the model; no
  // worker may push meanwhile.
  CallLoop(const PsCase& bench_case, ps::Client* client, const std::vector<std::vector<uint64_t>>& batches,
           size_t first, RowModel* model, bool check_responses);
  ~CallLoop();

  // Makes calls until `duration` has passed and waits for their responses.
  absl::StatusOr<CallTimes> Run(absl::Duration duration);
  // Pulls `calls` batches, as many at a time as the case has in flight, and compares every row of every
  // response with the model.
  absl::Status Verify(size_t calls);
  // Returns how often each batch was pushed since the previous call of TakePushes.
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
