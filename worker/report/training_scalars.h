#ifndef TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_
#define TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_

// What a training run writes for TensorBoard: DIR/worker-<rank> by each worker and, by rank 0, DIR/ps-<index>
// of what it asks the servers. docs/profiling.md lists the tags. Private to the folder.

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

// Used by one thread. A disk that fills up while training goes on ends the writing, with a warning, and not
// the run.
class TrainingScalars {
 public:
  TrainingScalars(absl::Duration every, Clock* clock) : every_(every), clock_(clock) {}

  // Without it everything below does nothing. `client` outlives this object. Errors are
  // TensorboardWriter::Open's.
  absl::Status Open(const std::string& directory, int rank, ps::Client* client);

  void BeginEpoch();
  // After a step; writes when `every` has passed since it last did.
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
  std::vector<std::unique_ptr<TensorboardWriter>> servers_;  // rank 0's
  bool failed_ = false;
  absl::Time written_;  // when; steps since then:
  double loss_sum_ = 0;
  uint64_t examples_ = 0, last_step_ = 0;
  double last_learning_rate_ = 0;
  std::map<std::pair<size_t, std::string>, Staleness> staleness_;  // so far, by server and table
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_TRAINING_SCALARS_H_
