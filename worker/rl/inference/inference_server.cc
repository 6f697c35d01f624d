// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/inference/inference_server.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

// Stop must not wait longer than this for the thread that follows the weights.
constexpr absl::Duration kFollowSlice = absl::Milliseconds(500);
constexpr size_t kMaxHeader = 4096;

// A learner that has lost its way publishes a version after the other.
constexpr absl::Duration kSayAgain = absl::Seconds(10);

// As LoadWeights, but refuses values with which no action can be computed. After an error *policy is
// unchanged.
absl::Status LoadFinite(const weights::Model& model, Policy* policy) {
  for (const float value : model.values()) {
    if (std::isfinite(value)) continue;
    return absl::FailedPreconditionError(absl::StrCat("it has the value ", value, ", which is not finite"));
  }
  return LoadWeights(model, policy);
}

absl::Status GoneError() { return absl::CancelledError("the client is gone"); }

}  // namespace

InferenceServer::InferenceServer(const InferenceServerOptions& options, const EnvironmentSpec& environment,
                                 weights::Weights* weights)
    : options_(options),
      weights_(weights),
      policy_(environment, options.policy, options.seed),
      observation_size_(environment.observation_size),
      action_size_(policy_.distribution().action_size()),
      random_(options.seed, HashBytes("inference actions")),
      computing_([this] { Compute(); }),
      following_([this] { Follow(); }) {}

rpc::Service InferenceServer::service() {
  rpc::Service service;
  service.name = "tandem.v1.Inference";
  service.methods = {
      {"Act", rpc::Right::kAct, [this](std::shared_ptr<rpc::ServerCall> call) { Act(call); }},
      {"GetStatistics", rpc::Right::kObserve,
       rpc::ProtoHandler<v1::InferenceStatisticsRequest, v1::InferenceStatistics>(
           [this](const auto&) -> absl::StatusOr<v1::InferenceStatistics> { return Statistics(); })},
  };
  return service;
}

void InferenceServer::Act(const std::shared_ptr<rpc::ServerCall>& call) {
  v1::InferenceActRequest request;
  Bytes payload;
  absl::Status status = rpc::DecodeBulk(call->request(), &request, &payload, kMaxHeader);
  if (status.ok() && (request.rows() == 0 || request.rows() > options_.max_rows ||
                      payload.size() != request.rows() * observation_size_ * sizeof(float))) {
    status = absl::InvalidArgumentError(absl::StrCat(options_.name, ": ", request.rows(), " observations in ",
                                                     payload.size(), " bytes; there must be 1 to ",
                                                     options_.max_rows, ", each of ", observation_size_,
                                                     " float32 numbers"));
  }
  if (!status.ok()) return call->Finish(std::move(status));
  Call one = {.call = call,
              .rows = request.rows(),
              .observations = std::vector<float>(request.rows() * observation_size_),
              .arrived = MonotonicNow()};
  BytesReader(payload).Copy(one.observations.data(), payload.size());
  for (const float number : one.observations) {
    if (!std::isfinite(number)) {
      return call->Finish(absl::InvalidArgumentError(
          absl::StrCat(options_.name, ": an observation has the number ", number, ", which is not finite")));
    }
  }
  std::vector<Call> gone;
  {
    absl::MutexLock lock(&mutex_);
    // Once there are weights, each batch takes all calls. Before that, actors that repeat theirs would fill
    // the queue with calls for which nobody waits any more.
    if (newest_ == nullptr) gone = TakeGone(&waiting_);
    sums_.set_dropped_calls(sums_.dropped_calls() + gone.size());
    if (!failure_.ok()) {
      status = failure_;
    } else if (stopped_) {
      status = absl::CancelledError(absl::StrCat(options_.name, " has stopped"));
    } else if (waiting_.size() >= options_.max_waiting) {
      status = absl::ResourceExhaustedError(
          absl::StrCat(options_.name, ": ", waiting_.size(), " calls wait already"));
    } else {
      waiting_.push_back(std::move(one));
    }
  }
  FinishAll(gone, GoneError());
  if (!status.ok()) call->Finish(std::move(status));
}

std::vector<InferenceServer::Call> InferenceServer::TakeGone(std::vector<Call>* calls) {
  const auto gone = std::stable_partition(calls->begin(), calls->end(),
                                          [](const Call& one) { return !one.call->IsCancelled(); });
  std::vector<Call> taken(std::make_move_iterator(gone), std::make_move_iterator(calls->end()));
  calls->erase(gone, calls->end());
  return taken;
}

void InferenceServer::FinishAll(const std::vector<Call>& calls, const absl::Status& status) {
  for (const Call& one : calls) one.call->Finish(status);
}

void InferenceServer::Follow() {
  weights::ModelVersion have;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return;
    }
    const absl::Time begin = MonotonicNow();
    absl::StatusOr<std::shared_ptr<const weights::Model>> newer =
        weights_->Newer(kPolicyModel, have, begin + kFollowSlice);
    absl::MutexLock lock(&mutex_);
    if (newer.ok() && *newer != nullptr) {
      have = (*newer)->info.version;
      newest_ = *std::move(newer);
      failure_ = absl::OkStatus();
      continue;
    }
    // The store may be away for a while; the weights that are here still act. An error that comes at once
    // must not make this thread spin.
    if (newer.ok() || stopped_) continue;
    const auto stopped = +[](bool* flag) { return *flag; };
    Clock::Real()->AwaitUntil(&mutex_, absl::Condition(stopped, &stopped_), begin + kFollowSlice);
  }
}

void InferenceServer::Compute() {
  for (;;) {
    std::vector<Call> calls;
    std::shared_ptr<const weights::Model> newest;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &InferenceServer::Ready));
      if (stopped_) return;
      calls.swap(waiting_);
      newest = newest_;
    }
    if (newest != model_ && newest != skipped_) {
      const absl::Status loaded = LoadFinite(*newest, &policy_);
      if (loaded.ok()) {
        model_ = newest;
      } else {
        Skip(newest, loaded);
      }
    }
    if (model_ != nullptr) {
      Run(std::move(calls));
      continue;
    }
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      if (newest_ == newest) {
        // Until there are other weights.
        status = failure_ = skip_reason_;
        std::move(waiting_.begin(), waiting_.end(), std::back_inserter(calls));
        waiting_.clear();
      } else {
        calls.insert(calls.end(), std::make_move_iterator(waiting_.begin()),
                     std::make_move_iterator(waiting_.end()));
        waiting_ = std::exchange(calls, {});
      }
    }
    FinishAll(calls, status);
  }
}

void InferenceServer::Skip(std::shared_ptr<const weights::Model> model, const absl::Status& why) {
  const std::string version =
      absl::StrCat("version ", model->info.version.number, " of '", model->info.model, "', published by ",
                   model->info.publisher.empty() ? "an unnamed process" : model->info.publisher);
  skip_reason_ = Annotate(why, absl::StrCat(options_.name, " skips ", version));
  skipped_ = std::move(model);
  const absl::Time now = MonotonicNow();
  if (now - said_ < kSayAgain) return;
  said_ = now;
  LogWarning(absl::StrCat(skip_reason_.message(),
                          model_ == nullptr
                              ? "; calls fail until there is another version"
                              : absl::StrCat("; version ", model_->info.version.number, " acts on")));
}

void InferenceServer::Run(std::vector<Call> calls) {
  const absl::Time begin = MonotonicNow();
  const std::vector<Call> gone = TakeGone(&calls);
  FinishAll(gone, GoneError());
  size_t rows = 0;
  absl::Duration waited;
  for (const Call& call : calls) {
    rows += call.rows;
    waited += begin - call.arrived;
  }
  observations_.resize(rows * observation_size_);
  actions_.resize(rows * action_size_);
  log_probabilities_.resize(rows);
  values_.resize(rows);
  auto to = observations_.begin();
  for (const Call& call : calls) to = std::copy(call.observations.begin(), call.observations.end(), to);
  if (rows > 0) {
    policy_.Normalize(observations_, absl::MakeSpan(observations_));
    policy_.Act(observations_.data(), rows, random_, absl::MakeSpan(actions_),
                absl::MakeSpan(log_probabilities_), absl::MakeSpan(values_));
  }
  {
    absl::MutexLock lock(&mutex_);
    sums_.set_dropped_calls(sums_.dropped_calls() + gone.size());
    sums_.set_calls(sums_.calls() + calls.size());
    sums_.set_rows(sums_.rows() + rows);
    sums_.set_batches(sums_.batches() + (rows > 0 ? 1 : 0));
    sums_.set_wait_seconds_mean(sums_.wait_seconds_mean() + absl::ToDoubleSeconds(waited));
    sums_.set_compute_seconds_mean(sums_.compute_seconds_mean() +
                                   absl::ToDoubleSeconds(MonotonicNow() - begin));
    sums_.set_epoch(model_->info.version.epoch);
    sums_.set_version(model_->info.version.number);
  }
  size_t row = 0;
  for (const Call& call : calls) {
    Respond(call, row);
    row += call.rows;
  }
}

void InferenceServer::Respond(const Call& call, size_t begin) {
  v1::InferenceActResponse response;
  response.set_epoch(model_->info.version.epoch);
  response.set_version(model_->info.version.number);
  response.set_last(model_->info.last);
  std::string payload(call.rows * (action_size_ + 1) * sizeof(float), '\0');
  auto* const to = reinterpret_cast<float*>(payload.data());
  std::copy_n(actions_.begin() + static_cast<ptrdiff_t>(begin * action_size_), call.rows * action_size_, to);
  std::copy_n(log_probabilities_.begin() + static_cast<ptrdiff_t>(begin), call.rows,
              to + call.rows * action_size_);
  call.call->Finish(rpc::EncodeBulk(response, Bytes(std::move(payload))));
}

v1::InferenceStatistics InferenceServer::Statistics() const {
  absl::MutexLock lock(&mutex_);
  v1::InferenceStatistics statistics = sums_;
  const auto mean = [](double sum, uint64_t count) {
    return count == 0 ? 0 : sum / static_cast<double>(count);
  };
  statistics.set_batch_rows_mean(mean(static_cast<double>(sums_.rows()), sums_.batches()));
  statistics.set_wait_seconds_mean(mean(sums_.wait_seconds_mean(), sums_.calls()));
  statistics.set_compute_seconds_mean(mean(sums_.compute_seconds_mean(), sums_.batches()));
  statistics.set_waiting_calls(waiting_.size());
  return statistics;
}

void InferenceServer::Stop() {
  std::vector<Call> rest;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    rest.swap(waiting_);
  }
  FinishAll(rest, absl::CancelledError(absl::StrCat(options_.name, " has stopped")));
  if (computing_.joinable()) computing_.join();
  if (following_.joinable()) following_.join();
}

}  // namespace tandem::rl
