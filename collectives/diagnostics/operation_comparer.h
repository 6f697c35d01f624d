// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_OPERATION_COMPARER_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_OPERATION_COMPARER_H_

// Compares what the ranks of a group are about to run, for backends that cannot do so themselves.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/backend.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// The ranks exchange their fingerprints (collectives/operation.h) through a backend of the same ranks,
// `control`, in an all_gather. For uneven gather, scatter and all_to_all a second all_gather compares how
// many elements each pair sends and expects.
//
// For one thread at a time, which is the one that runs the group's collectives.
class OperationComparer {
 public:
  // `control` is borrowed; only Abort may be called on it from elsewhere. `group` is the group's name, for
  // messages.
  OperationComparer(std::string group, int rank, int world_size, Backend* control);

  // Returns OK if all ranks are about to run `operation`. Blocks until all have called this, at most
  // `operation.timeout`. Errors:
  //
  //   - InvalidArgument naming both sides, on all ranks, if ranks disagree
  //   - otherwise the error of `control`, such as DeadlineExceeded naming the absent ranks
  absl::Status Compare(const Operation& operation);

 private:
  absl::Status CompareFingerprints(const Operation& operation);
  absl::Status ComparePairs(const Operation& operation, absl::Duration timeout);
  // all[s] = rank s's `mine`, which has the same size on all ranks.
  absl::Status Exchange(const Operation& operation, absl::Duration timeout, absl::Span<const char> mine,
                        std::vector<char>* all);

  const std::string group_;
  const int rank_, world_size_;
  Backend* const control_;
  uint64_t exchanges_ = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_OPERATION_COMPARER_H_
