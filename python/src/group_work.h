// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_GROUP_WORK_H_
#define TANDEM_PYTHON_SRC_GROUP_WORK_H_

// GroupWork is an operation of a process group, as Python sees it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/work.h"
#include "nanobind/nanobind.h"
#include "python/src/call.h"
#include "python/src/process.h"

namespace tandem::python {

// Keeps the tensors of an operation alive until it is completed, even if Python drops the object.
// Thread-safe.
class GroupWork {
 public:
  // `keep` are the tensors; `released` takes them afterwards.
  GroupWork(nanobind::object keep, std::shared_ptr<ReleasedObjects> released)
      : released_(std::move(released)) {
    keep_.push_back(std::move(keep));
  }
  ~GroupWork() { released_->Add(std::move(keep_)); }

  // Takes the operation, which has begun, and increments `running` until it is completed. Called once. Needs
  // no GIL.
  static void Begin(const std::shared_ptr<GroupWork>& self, collectives::Work work,
                    std::shared_ptr<std::atomic<int>> running);

  // Returns FailedPrecondition in a forked child of the process that began the operation: no thread is there
  // to complete it.
  absl::Status CheckProcess() const;
  bool done() const { return work_.IsCompleted(); }
  // Blocks until the operation is completed, at most `seconds`; returns whether it is. Call it without the
  // GIL.
  bool WaitFor(double seconds) const;
  // Returns the status of a completed operation.
  absl::Status status() const { return work_.status(); }
  int source_rank() const { return work_.source_rank(); }
  // Adds `number` to `queue` once the operation is completed.
  void WhenFinished(std::shared_ptr<FinishedCalls> queue, uint64_t number) const;

 private:
  const uint64_t made_ = ForkGeneration();
  std::vector<nanobind::object> keep_;
  const std::shared_ptr<ReleasedObjects> released_;
  collectives::Work work_;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_GROUP_WORK_H_
