// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_MONITOR_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_MONITOR_H_

// State that a group's calling threads share with the engine's thread: whether the group is broken, which
// ranks have arrived, and a signal for changes.

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/timed_wait.h"

namespace tandem::collectives::mpi {

// The state of one group. Thread-safe. Owned by shared pointers, because MPI operations may outlive the
// group.
class Monitor {
 public:
  explicit Monitor(int world_size) : arrived_(world_size, 0) {}

  // Returns whether the group is broken, and error() why; OK before that.
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  absl::Status error() {
    absl::MutexLock lock(&mutex_);
    return error_;
  }
  // Breaks the group; the first reason stays. Returns true if this reason was the first.
  bool Break(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return false;
    error_ = reason;
    broken_.store(true, std::memory_order_release);
    changed_.SignalAll();
    return true;
  }

  // Records that rank `rank` waits in the collective with this number.
  void Arrive(int rank, uint64_t number) {
    absl::MutexLock lock(&mutex_);
    arrived_[rank] = number;
  }
  // Returns the ranks other than `self` that have not arrived in collective `number` yet.
  std::vector<int> Absent(uint64_t number, int self) {
    absl::MutexLock lock(&mutex_);
    std::vector<int> absent;
    for (int rank = 0; rank < static_cast<int>(arrived_.size()); ++rank) {
      if (rank != self && arrived_[rank] < number) absent.push_back(rank);
    }
    return absent;
  }

  // Sets *done and wakes the threads that wait.
  void Ring(std::atomic<bool>* done) {
    absl::MutexLock lock(&mutex_);
    done->store(true, std::memory_order_release);
    changed_.SignalAll();
  }
  // Waits until *done is set, the group is broken, or `deadline`.
  void Wait(const std::atomic<bool>& done, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    while (!done.load(std::memory_order_acquire) && !broken()) {
      if (tandem::WaitUntil(&changed_, &mutex_, deadline)) return;
    }
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> arrived_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> broken_{false};
};

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_MONITOR_H_
