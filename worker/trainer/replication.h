// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_REPLICATION_H_
#define TANDEM_WORKER_TRAINER_REPLICATION_H_

// The replicated rows of a training run: how the job makes them, how checkpoints keep them, and what the
// report says of them and of row staleness.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "ps/replicated/replicated_tables.h"
#include "worker/data/schema.h"
#include "worker/job/job_spec.h"
#include "worker/report/report.h"
#include "worker/step/hybrid_trainer.h"
#include "worker/trainer/training_plan.h"

namespace tandem::worker {

// Used by one thread. Every rank makes the same calls.
class Replication {
 public:
  // `schema` is that of the data. All other arguments outlive the object. In sync mode no row is replicated
  // and nothing is measured.
  static absl::StatusOr<std::unique_ptr<Replication>> Create(const JobSpec& job, const Schema& schema,
                                                             const TrainingPlan& plan, ps::Client* client,
                                                             collectives::ProcessGroup* group);

  // Returns the replicated rows for the trainer; nullptr if there are none.
  ps::ReplicatedTables* tables() const { return tables_.get(); }

  // The start of an asynchronous run: its first steps, up to the first choice of rows. It is synchronous,
  // unless all tables have a cache.
  //
  // Begins the start. To be called before the first step, after a checkpoint was loaded. Blocks for rank 0.
  absl::Status BeginStart();
  // Notes a step of this worker in the report's start. Rank 0 says when it is over, and warns as soon as the
  // first asynchronous steps are measured.
  absl::Status AfterStep(RunReport* report);
  // Ends a start that lasts as long as the run. Called when no step is under way.
  absl::Status EndStart();
  // Returns whether the start is synchronous and not over.
  bool starting() const { return tables_ != nullptr && tables_->starting(); }

  // Writes the replicated rows to the servers, before these save a checkpoint, and returns their ids by
  // table. Rank 0 only.
  absl::StatusOr<std::map<std::string, std::vector<uint64_t>>> WriteBack();
  // Replicates exactly these rows, with the values that the servers have loaded from a checkpoint.
  absl::Status Restore(const std::map<std::string, std::vector<uint64_t>>& ids);

  // Sums the row staleness of all workers' pushes after an epoch, without those of the start, and sets the
  // report's features and warnings.
  absl::Status AddEpoch(const PassStats& stats, const ServedCounts& served, RunReport* report);
  // Describes the replicated rows of table `t` in its report.
  void AddTable(size_t t, TableReport* table) const;

 private:
  Replication(const JobSpec& job, const TrainingPlan& plan, ps::Client* client,
              collectives::ProcessGroup* group);
  // Warns of features whose rows are stale, once of each. `only_decided`: not of those whose rows may still
  // be chosen for replication.
  void Warn(const std::vector<FeatureReport>& features, bool only_decided, RunReport* report);
  // Returns the features with the row staleness of this worker's pushes since the last reset.
  absl::StatusOr<std::vector<FeatureReport>> OwnFeatures();
  // Warns of tables of a run in mode sync whose mode was changed on the servers: nothing replicates their
  // rows.
  void WarnOfChangedModes(RunReport* report);

  const JobSpec& job_;
  const TrainingPlan& plan_;
  std::vector<std::string> feature_names_;  // of the data
  ps::Client* const client_;
  collectives::ProcessGroup* const group_;
  std::unique_ptr<ps::RowHome> home_;
  std::unique_ptr<ps::ReplicatedTables> tables_;  // nullptr: no row is replicated
  uint64_t asynchronous_steps_ = 0;
  bool measured_ = false;  // the first asynchronous steps
  ServedCounts served_;    // over all epochs and workers
  // Features (table, name) with a warning; the name is empty for a table whose mode was changed.
  std::set<std::pair<std::string, std::string>> warned_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_REPLICATION_H_
