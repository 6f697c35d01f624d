// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/rl/envs/vector_environment.h"

namespace tandem::rl {
namespace {

std::string Describe(const EnvironmentSpec& spec) {
  return absl::StrCat(spec.observation_size, " numbers an observation and ",
                      spec.actions.discrete()
                          ? absl::StrCat(spec.actions.choices, " choices")
                          : absl::StrCat(spec.actions.dimensions, " real numbers an action"));
}

}  // namespace

absl::Status CheckEnvironment(const Policy& policy, absl::string_view name, const EnvironmentSpec& spec) {
  const EnvironmentSpec& wanted = policy.environment();
  if (spec.observation_size == wanted.observation_size && spec.actions == wanted.actions)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the environment '", name, "' has ", Describe(spec),
                                                 ", but the model was made for one with ", Describe(wanted)));
}

uint64_t EvaluationSeed(uint64_t seed) { return Mix64(seed, HashBytes("evaluation")); }

absl::StatusOr<Evaluation> Evaluate(Policy& policy, const EnvironmentOptions& environment, size_t episodes,
                                    uint64_t seed, const std::atomic<bool>* stop) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<VectorEnvironment> environments,
                          VectorEnvironment::Create(environment, episodes, EvaluationSeed(seed)));
  const EnvironmentSpec& have = environments->spec();
  TANDEM_RETURN_IF_ERROR(CheckEnvironment(policy, environment.kind, have));
  Evaluation evaluation;
  evaluation.returns.resize(episodes);
  std::vector<bool> ended(episodes, false);
  std::vector<float> actions(episodes * static_cast<size_t>(have.actions.dimensions));
  size_t left = episodes;
  std::vector<double> so_far(episodes);
  for (int64_t step = 0; left > 0; ++step) {
    if (stop != nullptr && stop->load()) return Evaluation();
    if (environment.max_steps == 0 && step == kMostSteps) {
      for (size_t i = 0; i < episodes; ++i) {
        if (ended[i]) continue;
        evaluation.returns[i] = so_far[i];
        evaluation.mean_length += static_cast<double>(step);
        ++evaluation.unfinished;
      }
      break;
    }
    policy.ActGreedily(environments->observations(), episodes, absl::MakeSpan(actions));
    TANDEM_RETURN_IF_ERROR(environments->Step(actions));
    for (size_t i = 0; i < episodes; ++i) so_far[i] += static_cast<double>(environments->rewards()[i]);
    for (const Episode& episode : environments->ended()) {
      if (ended[episode.environment]) continue;  // a later episode of this copy
      ended[episode.environment] = true;
      evaluation.returns[episode.environment] = episode.episode_return;
      evaluation.mean_length += static_cast<double>(episode.length);
      --left;
    }
  }
  const auto [least, greatest] = std::minmax_element(evaluation.returns.begin(), evaluation.returns.end());
  evaluation.least = *least;
  evaluation.greatest = *greatest;
  for (const double value : evaluation.returns) evaluation.mean += value;
  evaluation.mean /= static_cast<double>(episodes);
  evaluation.mean_length /= static_cast<double>(episodes);
  double squares = 0;
  for (const double value : evaluation.returns)
    squares += (value - evaluation.mean) * (value - evaluation.mean);
  if (episodes > 1) evaluation.deviation = std::sqrt(squares / static_cast<double>(episodes - 1));
  return evaluation;
}

}  // namespace tandem::rl
