// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_SUM_OVER_WORKERS_H_
#define TANDEM_WORKER_NN_SUM_OVER_WORKERS_H_

#include <functional>

#include "absl/types/span.h"

namespace tandem::worker {

// Replaces each value by its sum over all workers, which must all call it in the same order and with the same
// number of values. May block until every worker has called it. After a failure the values are unspecified;
// the function itself keeps the error.
using SumOverWorkers = std::function<void(absl::Span<double> values)>;

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_SUM_OVER_WORKERS_H_
