// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_LR_SCHEDULE_H_
#define TANDEM_WORKER_NN_LR_SCHEDULE_H_

// Schedules of the learning rate: a linear warm-up, then one of a few decays. The rate of a step is a
// function of the options, the step and, for reduce_on_plateau, the validation metrics so far.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::worker {

struct LearningRateOptions {
  std::string kind = "constant";  // a kind of Schedules() (worker/nn/registry.h)
  double base = 0.001;            // the rate that everything below multiplies
  uint64_t warmup_steps =
      0;  // every kind: the rate of step s < warmup_steps is base * (s + 1) / warmup_steps
  // step, exponential: steps for one multiplication by `factor`. The rate changes at once (step), or a little
  // with every step (exponential).
  uint64_t every = 1000;
  double factor = 0.5;       // step, exponential, reduce_on_plateau; in (0, 1]
  uint64_t total_steps = 0;  // cosine: the step at which the rate is min_lr, warm-up included; > warmup_steps
  double min_lr = 0.0;       // the rate does not fall below this, except in the warm-up; <= base
  int patience = 1;  // reduce_on_plateau: metrics in a row without improvement that do not lower the rate
  double min_delta = 0.0;        // reduce_on_plateau: a smaller improvement does not count as one
  bool higher_is_better = true;  // reduce_on_plateau: true for AUC, false for a loss
};

// The formula of a kind; lr_schedule.cc defines the values.
enum class LearningRateRule;

// The state of a schedule, for checkpoints. Only reduce_on_plateau changes it.
struct LearningRateState {
  double plateau_factor = 1.0;
  bool has_best = false;
  double best = 0.0;
  int bad_metrics = 0;  // in a row
};

// A schedule with its state. Not thread-safe. Copies are cheap.
class LearningRateSchedule {
 public:
  // Returns the schedule, or InvalidArgument naming the field, its value and what is allowed, or listing the
  // kinds.
  static absl::StatusOr<LearningRateSchedule> Create(const LearningRateOptions& options);

  // Returns the rate of the step number `step`, counted from 0. Decay counts the steps after the warm-up.
  double At(uint64_t step) const;
  // Returns At(step) / base, for other rates that follow the same schedule.
  double FactorAt(uint64_t step) const { return At(step) / options_.base; }

  // Reports a validation metric, usually once an epoch. Returns whether it lowered the rate, which only
  // reduce_on_plateau does. NaN, the metric of a split that has none, changes nothing.
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
