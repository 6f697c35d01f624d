// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_

// The contract of every process group, independent of its backend. All ranks of `group` call each function,
// in threads or processes, in the same order; it leaves the group as it was. Failures are GoogleTest's.
// Inputs are random with a fixed seed; expected results come from a direct model in this process.

#include <vector>

#include "base/numeric/dtype.h"
#include "collectives/operation.h"
#include "collectives/process_group.h"

namespace tandem::collectives {

struct SuiteOptions {
  std::vector<DType> dtypes = {DType::kU8,  DType::kI8,   DType::kI32, DType::kI64,
                               DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  // Number of elements that any backend has to cut into several chunks.
  size_t large = 200'000;
  // Allows the group's backend to refuse everything but sums of f32 and f64 with Unimplemented.
  bool may_refuse = false;
  // The kinds of operations that the group's backend lacks. It must refuse all of them with Unimplemented.
  std::vector<OpKind> lacks = {};
};

// Checks all_reduce, reduce and reduce_scatter: dtype x op x length x in place or not x root.
void CheckReductions(ProcessGroup& group, const SuiteOptions& options = {});
// Checks broadcast, all_gather, gather, scatter, all_to_all: dtype x length x in place or not x root.
void CheckMovements(ProcessGroup& group, const SuiteOptions& options = {});
// Checks parts that differ by rank, some of them empty.
void CheckUnevenParts(ProcessGroup& group, const SuiteOptions& options = {});
// Checks rings, all pairs, tags out of order, any source, batches, long messages.
void CheckPointToPoint(ProcessGroup& group, const SuiteOptions& options = {});
void CheckCoalesced(ProcessGroup& group, const SuiteOptions& options = {});
void CheckByteStrings(ProcessGroup& group);
// Checks NewGroup, NewSubgroups and Split: their ranks, and that the groups work.
void CheckSubgroups(ProcessGroup& group);
// Checks asynchronous operations of several groups in flight at once, issued in another order on every rank.
void CheckGroupsInFlight(ProcessGroup& group);
// Checks that ranks stay in step in a long random mixture of all operations.
void CheckMixture(ProcessGroup& group, const SuiteOptions& options = {});

void CheckEverything(ProcessGroup& group, const SuiteOptions& options = {});

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_SUITE_H_
