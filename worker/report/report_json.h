#ifndef TANDEM_WORKER_REPORT_REPORT_JSON_H_
#define TANDEM_WORKER_REPORT_REPORT_JSON_H_

// Apart from report.h, so that only those who write JSON pay for its header.

#include <cstdint>

#include "nlohmann/json.hpp"
#include "worker/step/hybrid_trainer.h"

namespace tandem::worker {

// {"forward": 1.2, ...}: milliseconds per step, of the computing thread and ("beside_...") of the pipeline's
// own.
nlohmann::ordered_json StagesToJson(const StageTimes& times, uint64_t steps);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_REPORT_JSON_H_
