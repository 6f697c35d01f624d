#ifndef TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_
#define TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_

// From what a job says to what the trainer does: which tables there are and which features look into them.

#include <vector>

#include "absl/status/statusor.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/wire_options.h"
#include "tandem/v1/parameter_server.pb.h"
#include "worker/data/dataset.h"
#include "worker/job/job_spec.h"
#include "worker/models/model.h"
#include "worker/step/lookup.h"

namespace tandem::worker {

struct TrainingPlan {
  LookupPlan lookup;
  std::vector<v1::TableConfig> tables;  // to create on the servers
  std::vector<ps::WireOptions> wires;   // of the tables
  std::vector<ps::CacheOptions> caches;
};

// `schema` is the opened dataset's. InvalidArgument when a table names a feature the data does not have, two
// tables claim one, or the model cannot work with the job's pooling.
absl::StatusOr<TrainingPlan> PlanJob(const JobSpec& job, const Schema& schema, const Model& model,
                                int num_workers);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_
