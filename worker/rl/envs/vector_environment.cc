// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/envs/vector_environment.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<VectorEnvironment>> VectorEnvironment::Create(
    const EnvironmentOptions& options, size_t count, uint64_t seed) {
  TANDEM_ASSIGN_OR_RETURN(const EnvironmentKind* const kind, Environments().Get(options.kind));
  TANDEM_RETURN_IF_ERROR(Environments().Validate(*kind, options));
  return std::make_unique<VectorEnvironment>(
      options.kind, [&] { return kind->build(options); }, options.max_steps, count, seed);
}

VectorEnvironment::VectorEnvironment(std::string name, const Factory& make, int max_steps, size_t count,
                                     uint64_t seed)
    : name_(std::move(name)), max_steps_(max_steps), seed_(seed), copies_(count) {
  TANDEM_CHECK(count > 0);
  for (Copy& copy : copies_) copy.environment = make();
  spec_ = copies_[0].environment->spec();
  observations_.resize(count * spec_.observation_size);
  final_observations_.resize(observations_.size());
  rewards_.resize(count);
  terminated_.resize(count);
  truncated_.resize(count);
  for (size_t i = 0; i < count; ++i) Begin(i);
}

void VectorEnvironment::Begin(size_t index) {
  Copy& copy = copies_[index];
  copy.random = CounterRandom(Mix64(seed_, index), copy.episodes++);
  copy.steps = 0;
  copy.episode_return = 0;
  copy.environment->Reset(copy.random);
  copy.environment->Observe(Row(observations_, index));
}

absl::Status VectorEnvironment::NotFinite(size_t index, const char* what, double value) const {
  const Copy& copy = copies_[index];
  return absl::InternalError(absl::StrCat("environment '", name_, "' returned the ", what, " ", value,
                                          " in step ", copy.steps, " of episode ", copy.episodes, " of copy ",
                                          index, "; it must be a finite number"));
}

absl::Status VectorEnvironment::Step(absl::Span<const float> actions) {
  const auto dimensions = static_cast<size_t>(spec_.actions.dimensions);
  if (actions.size() != count() * dimensions) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", count(), " copies of '", name_, "' takes ",
                                                   count() * dimensions, " numbers, not ", actions.size()));
  }
  ended_.clear();
  for (size_t i = 0; i < count(); ++i)
    TANDEM_RETURN_IF_ERROR(StepCopy(i, actions.subspan(i * dimensions, dimensions)));
  return absl::OkStatus();
}

absl::Status VectorEnvironment::StepCopy(size_t index, absl::Span<const float> action) {
  Copy& copy = copies_[index];
  ++copy.steps;
  for (const float number : action) {
    const bool valid = spec_.actions.discrete()
                           ? number >= 0 && number < static_cast<float>(spec_.actions.choices) &&
                                 number == std::trunc(number)
                           : std::isfinite(number);
    if (!valid) {
      return absl::InvalidArgumentError(
          absl::StrCat("the action ", number, " for copy ", index, " of '", name_, "' does not exist; ",
                       spec_.actions.discrete()
                           ? absl::StrCat("actions are whole numbers from 0 to ", spec_.actions.choices - 1)
                           : std::string("actions are finite numbers")));
    }
  }
  const StepResult result = copy.environment->Step(action, copy.random);
  if (!std::isfinite(result.reward)) return NotFinite(index, "reward", result.reward);
  copy.episode_return += result.reward;
  rewards_[index] = static_cast<float>(result.reward);
  const bool cut_off = max_steps_ > 0 && copy.steps >= max_steps_;
  terminated_[index] = result.terminated ? 1 : 0;
  truncated_[index] = cut_off ? 1 : 0;
  const absl::Span<float> seen = Row(final_observations_, index);
  copy.environment->Observe(seen);
  for (const float number : seen) {
    if (!std::isfinite(number)) return NotFinite(index, "observation", number);
  }
  if (!result.terminated && !cut_off) {
    std::copy(seen.begin(), seen.end(), Row(observations_, index).begin());
    return absl::OkStatus();
  }
  ended_.push_back({.environment = index, .episode_return = copy.episode_return, .length = copy.steps});
  Begin(index);
  return absl::OkStatus();
}

}  // namespace tandem::rl
