// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_PROGRESS_H_
#define TANDEM_WORKER_REPORT_PROGRESS_H_

// Prints a progress line for people who watch the training.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::worker {

// Prints the progress of the epoch, samples/s, mean loss and measured staleness, at most once per `every`. On
// a terminal one line is redrawn in place; elsewhere at most ten lines per epoch are printed. Used by one
// thread.
class Progress {
 public:
  // If `silent` (all ranks but 0), nothing is printed.
  Progress(bool silent, bool terminal, absl::Duration every, Clock* clock);

  // Starts an epoch of `total` examples, summed over all workers.
  void BeginEpoch(int epoch, int epochs, uint64_t total);
  // The staleness in a progress line: the mean of pushes, and the mean of rows (negative: not measured).
  struct Staleness {
    Staleness(double of_pushes, double of_rows = -1) : pushes(of_pushes), rows(of_rows) {}  // NOLINT
    // An asynchronous job is in its synchronous start.
    static Staleness SynchronousStart() {
      Staleness none(0);
      none.starting = true;
      return none;
    }
    double pushes;
    double rows;
    bool starting = false;
  };
  // Records a step of this worker; the other workers are assumed to progress equally. `staleness()` is called
  // only when a line is due.
  template <typename Measure>
  void Step(uint64_t examples_of_all_workers, double loss, Measure staleness) {
    done_ += examples_of_all_workers;
    // Exponential moving average over about the last hundred steps.
    mean_loss_ = mean_loss_ < 0 ? loss : mean_loss_ + 0.01 * (loss - mean_loss_);
    if (silent_ || !Due()) return;
    Draw(staleness());
  }
  // Removes the line from a terminal.
  void EndEpoch();

  // Returns the line; for tests.
  std::string Line(Staleness staleness) const;

 private:
  bool Due();
  void Draw(Staleness staleness);

  const bool silent_;
  const bool terminal_;
  const absl::Duration every_;
  Clock* const clock_;
  int epoch_ = 0, epochs_ = 0;
  uint64_t total_ = 0, done_ = 0, printed_tenths_ = 0;
  double mean_loss_ = -1;
  absl::Time epoch_begin_, last_draw_;
  bool on_screen_ = false;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_PROGRESS_H_
