#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_

// What every process group must do, whatever carries it. Each function is called by all ranks of `group`, in
// threads or processes, in the same order, and leaves the group as it was; failures are GoogleTest's. The
// inputs are random by a fixed seed, the expectation an obvious model in this process.

#include <vector>

#include "base/numeric/dtype.h"
#include "collectives/process_group.h"

namespace tandem::collectives {

struct SuiteOptions {
  std::vector<DType> dtypes = {DType::kU8,  DType::kI8,   DType::kI32, DType::kI64,
                               DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  // Elements of what must be cut into several pieces by any backend.
  size_t large = 200'000;
  // What the group's backend may refuse with Unimplemented: everything but sums of f32 and f64, if set.
  bool may_refuse = false;
};

// all_reduce, reduce and reduce_scatter: dtype x op x length x in place or not x root.
void CheckReductions(ProcessGroup& group, const SuiteOptions& options = {});
// broadcast, all_gather, gather, scatter, all_to_all: dtype x length x in place or not x root.
void CheckMovements(ProcessGroup& group, const SuiteOptions& options = {});
// Parts that differ by rank, some of them empty.
void CheckUnevenParts(ProcessGroup& group, const SuiteOptions& options = {});
// Rings, all pairs, tags out of order, any source, batches, long messages.
void CheckPointToPoint(ProcessGroup& group, const SuiteOptions& options = {});
void CheckCoalesced(ProcessGroup& group, const SuiteOptions& options = {});
void CheckByteStrings(ProcessGroup& group);
// NewGroup, NewSubgroups, Split: who is in them and that they work.
void CheckSubgroups(ProcessGroup& group);
// Asynchronous operations of several groups in flight at once, issued in another order on every rank.
void CheckGroupsInFlight(ProcessGroup& group);
// A long random mixture of everything stays in step.
void CheckMixture(ProcessGroup& group, const SuiteOptions& options = {});

void CheckEverything(ProcessGroup& group, const SuiteOptions& options = {});

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_
