#ifndef TANDEM_BENCH_SUITES_GROUP_TARGET_H_
#define TANDEM_BENCH_SUITES_GROUP_TARGET_H_

// A rank of a ProcessGroup as what is measured.

#include <memory>

#include "bench/harness/measure.h"
#include "collectives/operation.h"
#include "collectives/process_group.h"

namespace tandem::bench {

// `group` outlives it. `reduce` is how the reducing operations reduce.
std::unique_ptr<BenchTarget> MakeGroupTarget(collectives::ProcessGroup* group,
                                                collectives::ReduceOp reduce);

// InvalidArgument, naming --op, where there is no reduction of that name or none for `dtype`.
absl::StatusOr<collectives::ReduceOp> ParseReduceOp(absl::string_view name, DType dtype);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_GROUP_TARGET_H_
