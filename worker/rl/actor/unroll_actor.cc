// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/actor/unroll_actor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {

std::vector<replay::Column> UnrollColumns(const EnvironmentSpec& environment) {
  const auto width = static_cast<int64_t>(environment.observation_size);
  const auto actions = static_cast<int64_t>(environment.actions.dimensions);
  return {{"observation", DType::kF32, {width}},
          {"action", DType::kF32, {actions}},
          {"log_probability", DType::kF32, {}},
          {"reward", DType::kF32, {}},
          {"terminated", DType::kU8, {}},
          {"truncated", DType::kU8, {}},
          {"next_observation", DType::kF32, {width}},
          {"episode_return", DType::kF32, {}},
          {"episode_length", DType::kF32, {}}};
}

replay::TableOptions UnrollQueue(const EnvironmentSpec& environment, uint64_t size) {
  replay::TableOptions queue = replay::TableOptions::Queue(kUnrollTable, size);
  queue.columns = UnrollColumns(environment);
  return queue;
}

UnrollActor::UnrollActor(const UnrollActorOptions& options, replay::Replay* replay, weights::Weights* weights,
                         ActionSource* source, std::unique_ptr<VectorEnvironment> environments)
    : replay_(replay),
      weights_(weights),
      source_(source),
      environments_(std::move(environments)),
      policy_(environments_->spec(), options.policy, options.policy_seed),
      copies_(environments_->count()),
      steps_(static_cast<size_t>(options.unroll)),
      observation_size_(environments_->spec().observation_size),
      action_size_(policy_.distribution().action_size()),
      name_(absl::StrCat("actor/", options.index)),
      max_tickets_(options.tickets),
      acting_(options.policy_seed,
              Mix64(Mix64(HashBytes("impala actions"), options.index), options.exploration)),
      begins_(copies_, 1) {
  const size_t size = steps_ * copies_;
  unroll_.observations.resize(size * observation_size_);
  unroll_.next_observations.resize(size * observation_size_);
  unroll_.actions.resize(size * action_size_);
  unroll_.log_probabilities.resize(size);
  unroll_.rewards.resize(size);
  unroll_.episode_returns.resize(size);
  unroll_.episode_lengths.resize(size);
  unroll_.terminated.resize(size);
  unroll_.truncated.resize(size);
  unroll_.first.resize(size);
  unroll_.versions.resize(steps_);
  normalized_.resize(copies_ * observation_size_);
  taken_.resize(copies_ * action_size_);
  values_.resize(copies_);
}

absl::StatusOr<std::unique_ptr<UnrollActor>> UnrollActor::Create(const UnrollActorOptions& options,
                                                                 replay::Replay* replay,
                                                                 weights::Weights* weights,
                                                                 ActionSource* source) {
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<VectorEnvironment> environments,
      VectorEnvironment::Create(options.environment, options.copies,
                                Mix64(options.environment_seed, Mix64(HashBytes("actor"), options.index))));
  std::unique_ptr<UnrollActor> actor(
      new UnrollActor(options, replay, weights, source, std::move(environments)));
  const auto steps = static_cast<uint32_t>(actor->steps_ * actor->copies_);
  // One chunk has the steps of all copies, copy after copy. It is one longer, so that Deliver completes it
  // when all items have been made: they then travel in one request.
  TANDEM_ASSIGN_OR_RETURN(
      actor->writer_,
      replay::Writer::Create(replay, UnrollColumns(actor->environments_->spec()),
                             {.name = actor->name_,
                              .chunk_steps = steps + 1,
                              .history_steps = steps,
                              .max_pending_items = static_cast<uint32_t>(2 * actor->copies_)}));
  return actor;
}

absl::Status UnrollActor::Admit(absl::Time deadline) {
  if (max_tickets_ == 0) return absl::OkStatus();
  RenewTickets();
  // An unroll that has begun goes on: whether its items are taken shows when they are delivered.
  if (tickets_ended_ && row_ == 0) DropTickets();
  if (!tickets_.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(tickets_,
                          replay_->Admit(kUnrollTable, {.actor = name_, .count = max_tickets_}, deadline));
  const absl::Time now = MonotonicNow();
  for (const replay::Ticket& ticket : tickets_) {
    held_.Add(ticket, now);
    required_version_.number =
        std::max(required_version_.number, static_cast<uint64_t>(std::max<int64_t>(0, ticket.min_version)));
    required_version_.epoch = std::max(required_version_.epoch, ticket.epoch);
  }
  return absl::OkStatus();
}

void UnrollActor::RenewTickets() {
  const absl::Time now = MonotonicNow();
  if (!held_.due(now)) return;
  // If only some tickets have ended, the others are used.
  const absl::StatusOr<uint64_t> in_use = held_.Renew(replay_, now);
  if (in_use.ok()) tickets_ended_ = *in_use == 0;
}

void UnrollActor::DropTickets() {
  tickets_.clear();
  held_.Clear();
  tickets_ended_ = false;
  required_version_ = {};
}

absl::StatusOr<bool> UnrollActor::TakeWeights(absl::Time deadline) {
  RenewTickets();
  const weights::ModelVersion have = model_ == nullptr ? weights::ModelVersion() : model_->info.version;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const weights::Model> newer,
                          weights_->Newer(kPolicyModel, have, deadline));
  if (newer == nullptr) return false;
  TANDEM_RETURN_IF_ERROR(LoadWeights(*newer, &policy_));
  model_ = std::move(newer);
  return true;
}

absl::Status UnrollActor::Choose(size_t row, absl::Time deadline) {
  const auto part = [this, row](auto& values, size_t width) {
    return absl::MakeSpan(values).subspan(row * width, copies_ * width);
  };
  const absl::Span<const float> seen = environments_->observations();
  const absl::Span<float> actions = part(unroll_.actions, action_size_),
                          log_probabilities = part(unroll_.log_probabilities, 1);
  int64_t& version = unroll_.versions[row / copies_];
  if (source_ != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const ActedWith with,
                            source_->Act(seen, copies_, actions, log_probabilities, deadline));
    last_ = with.last;
    // Later steps are by the same weights or newer ones.
    if (row == 0 && IsBehind(with.version)) {
      return absl::UnavailableError(absl::StrCat("the inference server acts with ",
                                                 weights::ToString(with.version), ", and the tickets of ",
                                                 name_, " require ", weights::ToString(required_version_)));
    }
    version = static_cast<int64_t>(with.version.number);
    return absl::OkStatus();
  }
  TANDEM_CHECK_MSG(!behind(), "an actor needs weights of the version that its tickets require");
  policy_.Normalize(seen, absl::MakeSpan(normalized_));
  policy_.Act(normalized_.data(), copies_, acting_, actions, log_probabilities, absl::MakeSpan(values_));
  version = static_cast<int64_t>(model_->info.version.number);
  return absl::OkStatus();
}

absl::Status UnrollActor::AskWhetherLast(absl::Time deadline) {
  std::vector<float> actions(copies_ * action_size_), log_probabilities(copies_);
  TANDEM_ASSIGN_OR_RETURN(const ActedWith with,
                          source_->Act(environments_->observations(), copies_, absl::MakeSpan(actions),
                                       absl::MakeSpan(log_probabilities), deadline));
  last_ = with.last;
  return absl::OkStatus();
}

absl::Status UnrollActor::Act(absl::Time deadline) {
  const auto part = [this](auto& values, size_t row, size_t width) {
    return absl::MakeSpan(values).subspan(row * width, copies_ * width);
  };
  TANDEM_CHECK_MSG(max_tickets_ == 0 || !tickets_.empty(), "a paced actor needs tickets before it acts");
  for (; row_ < steps_ * copies_; row_ += copies_) {
    const size_t row = row_;
    RenewTickets();
    TANDEM_RETURN_IF_ERROR(Choose(row, deadline));
    const absl::Span<const float> seen = environments_->observations();
    std::copy(seen.begin(), seen.end(), part(unroll_.observations, row, observation_size_).begin());
    std::copy(begins_.begin(), begins_.end(), part(unroll_.first, row, 1).begin());
    const absl::Span<const float> actions = part(unroll_.actions, row, action_size_);
    for (size_t c = 0; c < copies_; ++c) {
      policy_.distribution().ToEnvironment(actions.subspan(c * action_size_, action_size_),
                                           absl::MakeSpan(taken_).subspan(c * action_size_, action_size_));
    }
    TANDEM_RETURN_IF_ERROR(environments_->Step(taken_));
    env_steps_ += copies_;
    episodes_.insert(episodes_.end(), environments_->ended().begin(), environments_->ended().end());
    const absl::Span<const float> led_to = environments_->final_observations();
    std::copy(led_to.begin(), led_to.end(), part(unroll_.next_observations, row, observation_size_).begin());
    for (size_t c = 0; c < copies_; ++c) {
      unroll_.rewards[row + c] = environments_->rewards()[c];
      unroll_.terminated[row + c] = environments_->terminated()[c];
      unroll_.truncated[row + c] = environments_->truncated()[c];
      begins_[c] = unroll_.terminated[row + c] | unroll_.truncated[row + c];
      unroll_.episode_returns[row + c] = unroll_.episode_lengths[row + c] = 0;
    }
    for (const Episode& episode : environments_->ended()) {
      unroll_.episode_returns[row + episode.environment] = static_cast<float>(episode.episode_return);
      unroll_.episode_lengths[row + episode.environment] = static_cast<float>(episode.length);
    }
  }
  row_ = 0;
  return Write();
}

absl::Status UnrollActor::Write() {
  const size_t items = max_tickets_ == 0 ? copies_ : tickets_.size();
  for (size_t item = 0; item < items; ++item) {
    const size_t c = (first_copy_ + item) % copies_;
    if (max_tickets_ > 0) writer_->Hold(kUnrollTable, tickets_[item]);
    for (size_t i = c; i < steps_ * copies_; i += copies_) {
      const auto value = [i](const auto& values, size_t width) {
        return absl::MakeConstSpan(values).subspan(i * width, width);
      };
      TANDEM_RETURN_IF_ERROR(writer_->Append(
          {value(unroll_.observations, observation_size_), value(unroll_.actions, action_size_),
           value(unroll_.log_probabilities, 1), value(unroll_.rewards, 1), value(unroll_.terminated, 1),
           value(unroll_.truncated, 1), value(unroll_.next_observations, observation_size_),
           value(unroll_.episode_returns, 1), value(unroll_.episode_lengths, 1)},
          {.is_first = unroll_.first[i] != 0, .policy_version = unroll_.versions[i / copies_]}));
    }
    TANDEM_RETURN_IF_ERROR(writer_->CreateItem(
        kUnrollTable, 1.0,
        writer_->Last(static_cast<uint32_t>(steps_), /*skip=*/0, /*across_episodes=*/true)));
  }
  // If there are never enough tickets, the copies take turns.
  first_copy_ = (first_copy_ + items) % copies_;
  DropTickets();
  return absl::OkStatus();
}

absl::Status UnrollActor::Deliver(absl::Time deadline) {
  absl::Status delivered = writer_->Flush(deadline);
  // Admit has found the table, so the error is about tickets that have ended.
  if (max_tickets_ > 0 && absl::IsNotFound(delivered)) return absl::OkStatus();
  return delivered;
}

}  // namespace tandem::rl
