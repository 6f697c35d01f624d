// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_
#define TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_

// Writes the scalars of a training run for TensorBoard: each worker writes to DIR/worker-<rank>, and rank 0
// writes the servers' statistics to DIR/ps-<index>. docs/profiling.md lists the tags. Private to the folder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "ps/client/client.h"
#include "worker/report/report.h"
#include "worker/report/tensorboard_writer.h"
#include "worker/step/hybrid_trainer.h"

namespace tandem::worker {

// Writes at most once per `every` during an epoch. Used by one thread. If the disk fails (e.g. is full), it
// logs a warning and stops writing, but the run continues.
class TrainingScalars {
 public:
  TrainingScalars(absl::Duration every, Clock* clock) : every_(every), clock_(clock) {}

  // Opens the event files. Without this call all calls below do nothing. `client` outlives this object.
  // Returns the errors of TensorboardWriter::Open.
  absl::Status Open(const std::string& directory, int rank, ps::Client* client);

  void BeginEpoch();
  // Records a step. Writes if `every` has passed since the last write.
  void Step(const StepReport& step, double learning_rate);
  void EndEpoch(const EpochReport& epoch);
  void Test(uint64_t step, const Quality& quality);

 private:
  struct Staleness {
    double sum = 0, pushes = 0;
  };
  void Write(TensorboardWriter* writer, uint64_t step, const std::vector<TensorboardWriter::Scalar>& scalars);
  void WriteSteps(uint64_t step, double learning_rate);
  void WriteServers(uint64_t step);

  const absl::Duration every_;
  Clock* const clock_;
  ps::Client* client_ = nullptr;
  std::unique_ptr<TensorboardWriter> worker_;
  std::vector<std::unique_ptr<TensorboardWriter>> servers_;  // rank 0 only
  bool failed_ = false;
  absl::Time last_write_;  // time of the last write; the next four members cover the steps since then
  double loss_sum_ = 0;
  uint64_t examples_ = 0, last_step_ = 0;
  double last_learning_rate_ = 0;
  std::map<std::pair<size_t, std::string>, Staleness> staleness_;  // totals by server and table
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_
