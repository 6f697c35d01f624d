#include "worker/nn/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::worker {
namespace {

template <typename T>
absl::Status OutOfRange(absl::string_view field, T value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("schedule.", field, " is ", value, "; it must be ", expected));
}

}  // namespace

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const LearningRateOptions& options) {
  constexpr std::pair<const char*, Kind> kKinds[] = {{"constant", Kind::kConstant},
                                                     {"step", Kind::kStep},
                                                     {"exponential", Kind::kExponential},
                                                     {"cosine", Kind::kCosine},
                                                     {"reduce_on_plateau", Kind::kReduceOnPlateau}};
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const auto& kind) { return options.kind == kind.first; });
  if (found == std::end(kKinds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule.kind is \"", options.kind,
                     "\"; the kinds are constant, step, exponential, cosine, reduce_on_plateau"));
  }
  const Kind kind = found->second;
  if (!(options.base > 0.0 && std::isfinite(options.base)))
    return OutOfRange("base", options.base, "above 0");
  if (!(options.min_lr >= 0.0 && options.min_lr <= options.base)) {
    return OutOfRange("min_lr", options.min_lr, absl::StrCat("from 0 to the base rate, ", options.base));
  }
  if (!(options.factor > 0.0 && options.factor <= 1.0))
    return OutOfRange("factor", options.factor, "in (0, 1]");
  if ((kind == Kind::kStep || kind == Kind::kExponential) && options.every == 0) {
    return OutOfRange("every", options.every, "at least 1");
  }
  if (kind == Kind::kCosine && options.total_steps <= options.warmup_steps) {
    return OutOfRange("total_steps", options.total_steps,
                      absl::StrCat("above warmup_steps, ", options.warmup_steps));
  }
  if (options.patience < 0) return OutOfRange("patience", options.patience, "at least 0");
  if (!(options.min_delta >= 0.0)) return OutOfRange("min_delta", options.min_delta, "at least 0");
  return LearningRateSchedule(kind, options);
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
  switch (kind_) {
    case Kind::kConstant:
      break;
    case Kind::kStep:
      rate *= std::pow(o.factor, static_cast<double>(decayed / o.every));
      break;
    case Kind::kExponential:
      rate *= std::pow(o.factor, static_cast<double>(decayed) / static_cast<double>(o.every));
      break;
    case Kind::kCosine: {
      const double part = static_cast<double>(decayed) / static_cast<double>(o.total_steps - o.warmup_steps);
      rate = o.min_lr + (o.base - o.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(part, 1.0)));
      break;
    }
    case Kind::kReduceOnPlateau:
      rate *= state_.plateau_factor;
      break;
  }
  return warmup * std::max(rate, o.min_lr);
}

bool LearningRateSchedule::OnMetric(double metric) {
  if (kind_ != Kind::kReduceOnPlateau) return false;
  const double gain = options_.higher_is_better ? metric - state_.best : state_.best - metric;
  if (state_.has_best ? gain > options_.min_delta : !std::isnan(metric)) {
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
