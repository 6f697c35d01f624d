// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/transition_actor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/learner/dqn_update.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

constexpr uint32_t kStepsOfAct = 16;  // of each copy
constexpr uint64_t kKeptEpisodes = 4096;
// Updates by which the learner may be behind before actors wait, besides what they do in one call.
constexpr int64_t kUpdatesBehind = 64;

std::vector<replay::Column> EpisodeColumns() {
  return {{"episode_return", DType::kF32, {}}, {"episode_length", DType::kF32, {}}};
}

}  // namespace

replay::TableOptions EpisodeTableOptions() {
  replay::TableOptions table;
  table.name = kEpisodeTable;
  table.sampler = {.kind = replay::SelectorKind::kFifo};
  table.remover = {.kind = replay::SelectorKind::kFifo};
  table.max_items = kKeptEpisodes;
  table.max_times_sampled = 1;
  table.limit = replay::RateLimit::MinSize(1);
  return table;
}

int64_t LeadOf(const weights::ModelInfo& info) {
  return static_cast<int64_t>(info.items_consumed) - static_cast<int64_t>(info.step);
}

int64_t GreatestLead(const LearnerOptions& options) {
  return kUpdatesBehind * options.algorithm.update_every +
         static_cast<int64_t>(options.environments) * (kStepsOfAct + options.algorithm.n_step);
}

TransitionActor::TransitionActor(const TransitionActorOptions& options, weights::Weights* weights,
                                 std::unique_ptr<VectorEnvironment> environments)
    : options_(options),
      weights_(weights),
      environments_(std::move(environments)),
      policy_(environments_->spec(), options.learner.policy, options.learner.seeds.policy),
      observation_size_(environments_->spec().observation_size),
      exploring_(options.learner.seeds.policy,
                 Mix64(Mix64(HashBytes("dqn exploration"), options.index), options.life)) {
  const size_t count = environments_->count();
  adders_.assign(count, NStepAdder(static_cast<size_t>(options.learner.algorithm.n_step),
                                   options.learner.algorithm.gamma));
  actions_.resize(count);
  normalized_.resize(count * observation_size_);
}

absl::StatusOr<std::unique_ptr<TransitionActor>> TransitionActor::Create(
    const TransitionActorOptions& options, replay::Replay* replay, weights::Weights* weights) {
  uint64_t seed = Mix64(options.learner.seeds.environment, Mix64(HashBytes("actor"), options.index));
  if (options.life > 0) seed = Mix64(seed, options.life);
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<VectorEnvironment> environments,
      VectorEnvironment::Create(options.learner.environment, options.learner.environments, seed));
  const EnvironmentSpec& spec = environments->spec();
  const auto count = static_cast<uint32_t>(environments->count());
  std::unique_ptr<TransitionActor> actor(new TransitionActor(options, weights, std::move(environments)));
  const std::string name = absl::StrCat("actor/", options.index);
  // Act delivers nothing, so that a server that is away does not interrupt a step.
  const uint32_t most = kStepsOfAct * count * static_cast<uint32_t>(options.learner.algorithm.n_step);
  TANDEM_ASSIGN_OR_RETURN(actor->transitions_,
                          replay::Writer::Create(replay, TransitionColumns(spec),
                                                 {.name = name,
                                                  .chunk_steps = 16,
                                                  .max_pending_items = std::max<uint32_t>(4096, 2 * most),
                                                  .deliver_on_request = true}));
  TANDEM_ASSIGN_OR_RETURN(actor->episodes_,
                          replay::Writer::Create(replay, EpisodeColumns(),
                                                 {.name = absl::StrCat(name, "/episodes"),
                                                  .chunk_steps = 16,
                                                  .max_pending_items = std::max<uint32_t>(4096, 2 * most),
                                                  .deliver_on_request = true}));
  return actor;
}

absl::StatusOr<bool> TransitionActor::TakeWeights(absl::Time deadline) {
  const weights::ModelVersion have = model_ == nullptr ? weights::ModelVersion() : model_->info.version;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const weights::Model> newer,
                          weights_->Newer(kPolicyModel, have, deadline));
  if (newer == nullptr) return false;
  TANDEM_RETURN_IF_ERROR(LoadWeights(*newer, &policy_));
  model_ = std::move(newer);
  acted_ = 0;
  return true;
}

absl::Status TransitionActor::Store(const NStepTransition& transition) {
  TANDEM_RETURN_IF_ERROR(transitions_->Append(
      {transition.observation, transition.action, absl::MakeConstSpan(&transition.reward, 1),
       absl::MakeConstSpan(&transition.discount, 1), transition.next_observation},
      {.policy_version = static_cast<int64_t>(model_->info.version.number)}));
  // Without a priority the item gets the greatest one so far, so that it is soon drawn once.
  return transitions_->CreateItem(kTransitionTable, std::nullopt, transitions_->Last(1));
}

absl::Status TransitionActor::Act() {
  TANDEM_CHECK_MSG(model_ != nullptr, "an actor needs weights");
  const size_t count = environments_->count();
  const double epsilon =
      ActorEpsilonAt(options_.learner, model_->info.items_consumed, options_.index, options_.actors);
  for (uint32_t step = 0; step < kStepsOfAct; ++step) {
    previous_.assign(environments_->observations().begin(), environments_->observations().end());
    policy_.Normalize(previous_, absl::MakeSpan(normalized_));
    const absl::Span<const float> values = policy_.Forward(normalized_.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const bool explore = exploring_.UniformDouble() < epsilon;
      const uint64_t random_choice = exploring_.Below(policy_.choices());
      const absl::Span<const float> row = values.subspan(i * policy_.choices(), policy_.choices());
      actions_[i] = explore ? static_cast<float>(random_choice)
                            : static_cast<float>(std::max_element(row.begin(), row.end()) - row.begin());
    }
    TANDEM_RETURN_IF_ERROR(environments_->Step(actions_));
    acted_ += static_cast<int64_t>(count);
    env_steps_ += count;
    absl::Status stored;
    for (size_t i = 0; i < count; ++i) {
      adders_[i].Add(absl::MakeConstSpan(previous_).subspan(i * observation_size_, observation_size_),
                     absl::MakeConstSpan(actions_).subspan(i, 1),
                     environments_->rewards()[i] * options_.learner.algorithm.reward_scale,
                     environments_->final_observations().subspan(i * observation_size_, observation_size_),
                     environments_->terminated()[i] != 0, environments_->truncated()[i] != 0,
                     [&](const NStepTransition& transition) {
                       if (stored.ok()) stored = Store(transition);
                     });
    }
    TANDEM_RETURN_IF_ERROR(stored);
    for (const Episode& episode : environments_->ended()) {
      const auto episode_return = static_cast<float>(episode.episode_return),
                 length = static_cast<float>(episode.length);
      TANDEM_RETURN_IF_ERROR(
          episodes_->Append({absl::MakeConstSpan(&episode_return, 1), absl::MakeConstSpan(&length, 1)}));
      TANDEM_RETURN_IF_ERROR(episodes_->CreateItem(kEpisodeTable, 1.0, episodes_->Last(1)));
    }
  }
  return absl::OkStatus();
}

absl::Status TransitionActor::Deliver(absl::Time deadline) {
  TANDEM_RETURN_IF_ERROR(transitions_->Flush(deadline));
  return episodes_->Flush(deadline);
}

}  // namespace tandem::rl
