// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_GROUP_TARGET_H_
#define TANDEM_BENCH_SUITES_GROUP_TARGET_H_

// Measures a rank of a ProcessGroup.

#include <memory>

#include "bench/harness/measure.h"
#include "collectives/operation.h"
#include "collectives/process_group.h"

namespace tandem::bench {

// Returns a target that runs the operations of `group`, which must outlive it. `reduce` is the reduction of
// the reducing operations.
std::unique_ptr<BenchTarget> MakeGroupTarget(collectives::ProcessGroup* group, collectives::ReduceOp reduce);

// Returns the reduction of that name. InvalidArgument, naming --op, if there is none or if it does not
// support `dtype`.
absl::StatusOr<collectives::ReduceOp> ParseReduceOp(absl::string_view name, DType dtype);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_GROUP_TARGET_H_
