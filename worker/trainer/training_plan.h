// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_
#define TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_

// Translates a job into the trainer's inputs: the tables, and the features that each table embeds.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ps/client/cache/cache_options.h"
#include "ps/client/wire_options.h"
#include "ps/replicated/replicated_tables.h"
#include "tandem/v1/parameter_server.pb.h"
#include "worker/data/dataset.h"
#include "worker/job/job_spec.h"
#include "worker/models/model.h"
#include "worker/step/lookup.h"

namespace tandem::worker {

// tables[i], wires[i], caches[i] and replicas[i] belong to the same table.
struct TrainingPlan {
  LookupPlan lookup;
  std::vector<v1::TableConfig> tables;  // to create on the servers
  std::vector<ps::WireOptions> wires;
  std::vector<ps::CacheOptions> caches;
  std::vector<ps::ReplicatedTableOptions> replicas;
  // Why a table with `placement: auto` has no replicated rows, for the log.
  std::vector<std::string> notes;
};

// Builds the plan. `schema` is that of the opened dataset. Returns InvalidArgument in these cases:
//
// - A table, or its list of replicated or sharded features, names a feature that the data does not have.
// - Two tables claim the same feature.
// - The model or the data format does not work with server pooling.
// - The options of a table or cache are invalid.
absl::StatusOr<TrainingPlan> PlanJob(const JobSpec& job, const Schema& schema, const Model& model,
                                     int num_workers);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_PLAN_H_
