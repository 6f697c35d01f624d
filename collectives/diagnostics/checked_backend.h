#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_

// CheckedBackend implements DebugLevel::kDetail for backends that do not compare fingerprints (nccl). It
// corresponds to torch.distributed's ProcessGroupWrapper.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backend.h"

namespace tandem::collectives {

// Before each collective the ranks exchange their fingerprints through `control` (an all_gather with the
// operation's time-out); for uneven operations also what each pair sends and expects. An error is the same on
// all ranks, and the wrapped backend has not begun:
//
//   - InvalidArgument naming both sides if ranks disagree
//   - DeadlineExceeded naming the absent ranks (from `control`) if a rank does not come
//
// Costs one round of the control backend per operation. Point-to-point operations are passed on unchecked:
// their two sides check each other.
//
// Threads: as Backend says. Only the thread that runs the collective uses `control`.
class CheckedBackend final : public Backend {
 public:
  // `control` is a backend of the same ranks for the CPU, used by this object only.
  CheckedBackend(std::string group, int rank, int world_size, std::unique_ptr<Backend> backend,
                 std::unique_ptr<Backend> control);

  absl::string_view name() const override { return backend_->name(); }
  absl::Status Supports(const Operation& operation) const override { return backend_->Supports(operation); }
  absl::Status Run(const Operation& operation) override;
  absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations) override;
  void StartPointToPoint(const Operation& operation, Done done) override;
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override;
  void Abort(const absl::Status& reason) override;

 private:
  // Returns OK if all ranks are about to run `operation`; otherwise the group is broken.
  absl::Status Check(const Operation& operation);
  absl::Status CheckFingerprints(const Operation& operation);
  absl::Status CheckPairs(const Operation& operation);
  // all[s] = rank s's `mine`, which has the same size on all ranks.
  absl::Status Exchange(const Operation& operation, absl::Span<const char> mine, std::vector<char>* all);
  absl::Status broken() const;

  const std::string group_;
  const int rank_, world_size_;
  const std::unique_ptr<Backend> backend_, control_;
  uint64_t exchanges_ = 0;  // used by the thread that runs collectives
  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_
