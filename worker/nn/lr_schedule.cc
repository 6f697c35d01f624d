// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/nn/registry.h"

namespace tandem::worker {
enum class LearningRateRule { kConstant, kStep, kExponential, kCosine, kReduceOnPlateau };

namespace {

using Options = LearningRateOptions;
using ScheduleField = ConfigField<Options>;

std::optional<FieldConflict> CheckMinimum(const Options& o) {
  if (o.min_lr <= o.base) return std::nullopt;
  return FieldConflict{
      .field = "min_lr",
      .job_message = absl::StrCat("must be at most 'lr' of the optimizer, ", o.base),
      .message = absl::StrCat("min_lr is ", o.min_lr, "; it must be from 0 to the base rate, ", o.base)};
}

FieldConflict ShortCosine(const Options& o) {
  return {.field = "total_steps",
          .job_message = absl::StrCat("must be more than 'warmup_steps', ", o.warmup_steps),
          .message = absl::StrCat("total_steps is ", o.total_steps, "; it must be above warmup_steps, ",
                                  o.warmup_steps)};
}

std::optional<FieldConflict> CheckCosine(const Options& o) {
  if (o.total_steps != 0 && o.total_steps <= o.warmup_steps) return ShortCosine(o);
  return CheckMinimum(o);
}

ScheduleField WarmupSteps() {
  return MemberField<&Options::warmup_steps>({.name = "warmup_steps",
                                              .help = "steps over which the rate rises linearly from 0",
                                              .range = AtLeast(0)});
}
ScheduleField Every() {
  return MemberField<&Options::every>(
      {.name = "every", .help = "steps for one multiplication by `factor`", .range = AtLeast(1)});
}
ScheduleField Factor() {
  return MemberField<&Options::factor>(
      {.name = "factor", .help = "multiplies the rate", .range = {.min = 0, .max = 1, .above_min = true}});
}
ScheduleField MinRate() {
  return MemberField<&Options::min_lr>(
      {.name = "min_lr",
       .help = "the rate does not fall below this, except in the warm-up; not more than `lr`",
       .range = AtLeast(0)});
}

}  // namespace

const ScheduleRegistry& Schedules() {
  static const auto* const registry = new ScheduleRegistry(
      "schedule",
      {
          {.name = "constant",
           .summary = "`lr` after the warm-up",
           .fields = {WarmupSteps()},
           .check = CheckMinimum,
           .build = LearningRateRule::kConstant},
          {.name = "step",
           .summary = "times `factor` after each `every` steps",
           .fields = {WarmupSteps(), Every(), Factor(), MinRate()},
           .check = CheckMinimum,
           .build = LearningRateRule::kStep},
          {.name = "exponential",
           .summary = "times `factor` over each `every` steps, gradually",
           .fields = {WarmupSteps(), Every(), Factor(), MinRate()},
           .check = CheckMinimum,
           .build = LearningRateRule::kExponential},
          {.name = "cosine",
           .summary = "half a cosine down to `min_lr` at `total_steps`",
           .reference = "Loshchilov and Hutter, ICLR 2017",
           .fields = {WarmupSteps(),
                      MemberField<&Options::total_steps>(
                          {.name = "total_steps",
                           .help = "step at which the rate reaches `min_lr`, warm-up included, more than "
                                   "`warmup_steps`; 0: the end of the last epoch",
                           .range = AtLeast(0)}),
                      MinRate()},
           .check = CheckCosine,
           .build = LearningRateRule::kCosine},
          {.name = "reduce_on_plateau",
           .summary = "times `factor` after `patience` epochs without a better validation metric",
           .fields = {WarmupSteps(), Factor(),
                      MemberField<&Options::patience>(
                          {.name = "patience",
                           .help = "epochs in a row without an improvement that do not yet lower the rate",
                           .range = AtLeast(0)}),
                      MemberField<&Options::min_delta>({.name = "min_delta",
                                                        .help = "a smaller improvement does not count as one",
                                                        .range = AtLeast(0)}),
                      MinRate()},
           .check = CheckMinimum,
           .build = LearningRateRule::kReduceOnPlateau},
      });
  return *registry;
}

ConfigField<LearningRateOptions> BaseRateField() {
  return MemberField<&Options::base>({.name = "lr",
                                      .error_name = "base",
                                      .help = "learning rate of the dense parameters",
                                      .range = Above(0)});
}

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const LearningRateOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const ScheduleKind* const kind, Schedules().Get(options.kind));
  TANDEM_RETURN_IF_ERROR(ValidateField("schedule", BaseRateField().info, options.base));
  TANDEM_RETURN_IF_ERROR(Schedules().ValidateAllFields(*kind, options));
  // Only a job file may have 0, for the end of the last epoch; a run sets the number of steps.
  if (kind->build == LearningRateRule::kCosine && options.total_steps <= options.warmup_steps) {
    return absl::InvalidArgumentError(absl::StrCat("schedule.", ShortCosine(options).message));
  }
  return LearningRateSchedule(kind->build, options);
}

double LearningRateSchedule::At(uint64_t step) const {
  const LearningRateOptions& o = options_;
  double warmup = 1.0;
  uint64_t decayed = 0;
  if (step < o.warmup_steps) {
    warmup = static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  } else {
    decayed = step - o.warmup_steps;
  }
  double rate = o.base;
  switch (rule_) {
    case LearningRateRule::kConstant:
      break;
    case LearningRateRule::kStep:
      rate *= std::pow(o.factor, static_cast<double>(decayed / o.every));
      break;
    case LearningRateRule::kExponential:
      rate *= std::pow(o.factor, static_cast<double>(decayed) / static_cast<double>(o.every));
      break;
    case LearningRateRule::kCosine: {
      const double part = static_cast<double>(decayed) / static_cast<double>(o.total_steps - o.warmup_steps);
      rate = o.min_lr + (o.base - o.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(part, 1.0)));
      break;
    }
    case LearningRateRule::kReduceOnPlateau:
      rate *= state_.plateau_factor;
      break;
  }
  return warmup * std::max(rate, o.min_lr);
}

bool LearningRateSchedule::OnMetric(double metric) {
  if (rule_ != LearningRateRule::kReduceOnPlateau || std::isnan(metric)) return false;
  const double gain = options_.higher_is_better ? metric - state_.best : state_.best - metric;
  if (!state_.has_best || gain > options_.min_delta) {
    state_.best = metric;
    state_.has_best = true;
    state_.bad_metrics = 0;
    return false;
  }
  if (++state_.bad_metrics <= options_.patience) return false;
  state_.bad_metrics = 0;
  const bool lowered = options_.base * state_.plateau_factor > options_.min_lr && options_.factor < 1.0;
  if (lowered) state_.plateau_factor *= options_.factor;
  return lowered;
}

}  // namespace tandem::worker
