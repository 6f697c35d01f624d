#ifndef TANDEM_WORKER_NN_LR_SCHEDULE_H_
#define TANDEM_WORKER_NN_LR_SCHEDULE_H_

// How the learning rate changes while training: linear warm-up, then one of a few decays. The rate of a step
// is a function of the options, the step and, for reduce_on_plateau, the validation metrics seen so far.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::worker {

struct LearningRateOptions {
  std::string kind = "constant";  // constant, step, exponential, cosine, reduce_on_plateau
  double base = 0.001;            // the rate that everything below multiplies
  uint64_t warmup_steps = 0;      // every kind: step s < warmup_steps is multiplied by (s + 1) / warmup_steps
  uint64_t every = 1000;          // step, exponential: steps for one multiplication by `factor`; step jumps,
                                  // exponential glides
  double factor = 0.5;            // step, exponential, reduce_on_plateau; in (0, 1]
  uint64_t total_steps = 0;       // cosine: reaches min_lr here, warm-up included
  double min_lr = 0.0;            // no kind goes below; warm-up does
  int patience = 1;               // reduce_on_plateau: metrics in a row without improvement that are borne
  double min_delta = 0.0;         // reduce_on_plateau: a smaller improvement is none
  bool higher_is_better = true;   // reduce_on_plateau: AUC; false: a loss
};

// The formula of a kind; lr_schedule.cc defines the values.
enum class LearningRateRule;

// What a checkpoint keeps of a schedule.
struct LearningRateState {
  double plateau_factor = 1.0;
  bool has_best = false;
  double best = 0.0;
  int bad_metrics = 0;  // in a row
};

// Not thread-safe; cheap to copy.
class LearningRateSchedule {
 public:
  // InvalidArgument names the field, or the kind with those there are.
  static absl::StatusOr<LearningRateSchedule> Create(const LearningRateOptions& options);

  // The rate of step `step`, counted from 0. Decay counts steps after the warm-up.
  double At(uint64_t step) const;
  // At(step) / base: for rates other than the base that follow the same schedule.
  double FactorAt(uint64_t step) const { return At(step) / options_.base; }

  // A validation metric, usually once an epoch. True if it lowered the rate; only reduce_on_plateau ever
  // does. NaN counts as no improvement.
  bool OnMetric(double metric);

  const LearningRateState& state() const { return state_; }
  void Restore(const LearningRateState& state) { state_ = state; }

 private:
  LearningRateSchedule(LearningRateRule rule, const LearningRateOptions& options)
      : rule_(rule), options_(options) {}

  LearningRateRule rule_;
  LearningRateOptions options_;
  LearningRateState state_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_LR_SCHEDULE_H_
