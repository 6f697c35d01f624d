// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_REPORT_JSON_H_
#define TANDEM_WORKER_REPORT_REPORT_JSON_H_

// Converts stage times to JSON. Separate from report.h, so that only sources that write JSON include
// nlohmann's header.

#include <cstdint>

#include "nlohmann/json.hpp"
#include "worker/step/hybrid_trainer.h"

namespace tandem::worker {

// Returns {"forward": 1.2, ...}: milliseconds per step of the computing thread and, as "beside_...", of the
// pipeline's threads.
nlohmann::ordered_json StagesToJson(const StageTimes& times, uint64_t steps);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_REPORT_JSON_H_
