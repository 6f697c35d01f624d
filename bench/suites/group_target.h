#ifndef TANDEM_BENCH_SUITES_GROUP_TARGET_H_
#define TANDEM_BENCH_SUITES_GROUP_TARGET_H_

// A rank of a ProcessGroup as what is measured.

#include <memory>

#include "bench/harness/measure.h"
#include "collectives/operation.h"
#include "collectives/process_group.h"

namespace tandem::cli {

// `group` outlives it. `reduce` is how the reducing operations reduce.
std::unique_ptr<Contestant> MakeGroupContestant(collectives::ProcessGroup* group,
                                                collectives::ReduceOp reduce);

// InvalidArgument, naming --op, where there is no reduction of that name or none for `dtype`.
absl::StatusOr<collectives::ReduceOp> ParseReduceOp(absl::string_view name, DType dtype);

}  // namespace tandem::cli

#endif  // TANDEM_BENCH_SUITES_GROUP_TARGET_H_
