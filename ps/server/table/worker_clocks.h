// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_TABLE_WORKER_CLOCKS_H_
#define TANDEM_PS_SERVER_TABLE_WORKER_CLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace tandem::ps {

// The progress of a table's workers. A worker's clock is the number of its steps that are in the rows; steps
// count from 0 in a new job and from the saved clocks after LoadCheckpoint. Not thread-safe.
class WorkerClocks {
 public:
  // Number of skipped steps that are remembered for each worker.
  static constexpr uint64_t kMaxSkipped = 256;

  explicit WorkerClocks(size_t workers) : workers_(workers) {}

  size_t size() const { return workers_.size(); }
  uint64_t operator[](uint32_t worker) const { return workers_[worker].clock; }
  uint64_t Min() const {
    uint64_t min = ~uint64_t{0};
    for (const Worker& worker : workers_) min = std::min(min, worker.clock);
    return min;
  }
  uint64_t Max() const {
    uint64_t max = 0;
    for (const Worker& worker : workers_) max = std::max(max, worker.clock);
    return max;
  }
  // Returns whether the step is in the rows, as far as the skipped steps are remembered.
  bool IsDone(uint32_t worker, uint64_t step) const {
    return step < workers_[worker].clock && workers_[worker].skipped.count(step) == 0;
  }

  // Records that the worker's push of `step` is in the rows. A clock never goes back; the steps that it jumps
  // over are remembered as skipped, since their pushes may still arrive.
  void Advance(uint32_t worker, uint64_t step);
  // Sets the worker's clock and forgets its skipped steps.
  void Reset(uint32_t worker, uint64_t clock) { workers_[worker] = Worker{.clock = clock}; }
  // The steps below the worker's clock that are not in the rows, as far as they are remembered.
  const std::set<uint64_t>& skipped(uint32_t worker) const { return workers_[worker].skipped; }
  // Sets the worker's clock and its skipped steps.
  void Restore(uint32_t worker, uint64_t clock, std::set<uint64_t> skipped) {
    workers_[worker] = Worker{.clock = clock, .skipped = std::move(skipped)};
  }

 private:
  struct Worker {
    uint64_t clock = 0;
    // Steps < clock that are not in the rows. ASYNC and GBA tables make them.
    std::set<uint64_t> skipped = {};
  };
  std::vector<Worker> workers_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_TABLE_WORKER_CLOCKS_H_
