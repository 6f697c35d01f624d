#ifndef TANDEM_CLI_BENCH_GROUP_CONTESTANT_H_
#define TANDEM_CLI_BENCH_GROUP_CONTESTANT_H_

// A rank of a ProcessGroup as what is measured.

#include <memory>

#include "cli/bench/method/measure.h"
#include "collectives/operation.h"
#include "collectives/process_group.h"

namespace tandem::cli {

// `group` outlives it. `reduce` is how the reducing operations reduce.
std::unique_ptr<Contestant> MakeGroupContestant(collectives::ProcessGroup* group,
                                                collectives::ReduceOp reduce);

// InvalidArgument, naming --op, where there is no reduction of that name or none for `dtype`.
absl::StatusOr<collectives::ReduceOp> ParseReduceOp(absl::string_view name, DType dtype);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_BENCH_GROUP_CONTESTANT_H_
