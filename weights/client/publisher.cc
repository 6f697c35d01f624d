// SPDX-License-Identifier: Apache-2.0
#include "weights/client/publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::weights {
namespace {

// The time of one look, and of the first attempt of the thread to publish a version again. Each one after
// that has twice as long, since a large version may need more.
constexpr absl::Duration kLookTime = absl::Seconds(1), kFirstRepair = absl::Seconds(5),
                         kLongestRepair = absl::Minutes(10);

// Returns true if a later attempt may succeed: the store or the receiver was late or away.
bool MayPass(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsAborted(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(Weights* weights,
                                                             const PublisherOptions& options,
                                                             absl::Time deadline) {
  uint64_t committed = 0;
  if (options.commit_to != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(committed, options.commit_to->Head(deadline));
  }
  TANDEM_ASSIGN_OR_RETURN(const EpochGrant grant, weights->StartEpoch(options.model, options.name, deadline));
  std::unique_ptr<Publisher> publisher(new Publisher(weights, options));
  publisher->epoch_ = grant.epoch;
  {
    absl::MutexLock lock(&publisher->mutex_);
    publisher->version_ = std::max({grant.version, options.after_version, committed});
  }
  if (options.repair_every > absl::ZeroDuration()) {
    publisher->thread_ =
        std::jthread([self = publisher.get()](const std::stop_token& stop) { self->RepairUntil(stop); });
  }
  return publisher;
}

Publisher::~Publisher() { EndRepairs(); }

void Publisher::EndRepairs() {
  thread_.request_stop();  // ends a look
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

absl::StatusOr<uint64_t> Publisher::Publish(absl::Span<const NamedTensor> tensors, const PublishInfo& info,
                                            absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(UnfilledModel unfilled, PrepareModel(tensors));
  const std::shared_ptr<const Model> model = Begin(unfilled.model, info);
  absl::Status published = AwaitThread(deadline);
  if (published.ok()) {
    published = weights_->FillAndCommit(&unfilled, deadline);
  } else {
    unfilled.Fill();  // for the thread
  }
  TANDEM_RETURN_IF_ERROR(End(model, published, deadline));
  return model->info.version.number;
}

absl::StatusOr<uint64_t> Publisher::Publish(std::shared_ptr<Model> model, const PublishInfo& info,
                                            absl::Time deadline) {
  const std::shared_ptr<const Model> next = Begin(std::move(model), info);
  absl::Status published = AwaitThread(deadline);
  if (published.ok()) published = weights_->Commit(next, deadline);
  TANDEM_RETURN_IF_ERROR(End(next, published, deadline));
  return next->info.version.number;
}

absl::Status Publisher::Repeat(absl::Time deadline) {
  std::shared_ptr<const Model> model;
  {
    absl::MutexLock lock(&mutex_);
    if (last_ == nullptr) return absl::OkStatus();
    model = last_;
    publishing_ = true;
  }
  absl::Status published = AwaitThread(deadline);
  if (published.ok()) published = weights_->Commit(model, deadline);
  return End(model, published, deadline);
}

absl::Status Publisher::status() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

ModelVersion Publisher::version() const {
  absl::MutexLock lock(&mutex_);
  return {.epoch = epoch_, .number = version_};
}

std::shared_ptr<const Model> Publisher::Begin(std::shared_ptr<Model> model, const PublishInfo& info) {
  absl::MutexLock lock(&mutex_);
  model->info.model = options_.model;
  model->info.publisher = options_.name;
  model->info.version = {.epoch = epoch_, .number = ++version_};
  model->info.step = info.step;
  model->info.items_consumed = info.items_consumed;
  model->info.last = info.last;
  last_ = model;
  publishing_ = true;
  return model;
}

absl::Status Publisher::AwaitThread(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto free = [this] {
    mutex_.AssertReaderHeld();
    return !repairing_;
  };
  if (AwaitUntil(&mutex_, absl::Condition(&free), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("model '", options_.model,
                   "': an earlier version is still being published again, because its store has lost it"));
}

absl::Status Publisher::End(const std::shared_ptr<const Model>& model, absl::Status published,
                            absl::Time deadline) {
  if (published.ok()) published = Tell(*model, deadline);
  absl::MutexLock lock(&mutex_);
  publishing_ = false;
  due_ = MayPass(published);
  refused_ = due_ ? absl::OkStatus() : published;
  return published;
}

absl::Status Publisher::Tell(const Model& model, absl::Time deadline) {
  if (options_.commit_to == nullptr) return absl::OkStatus();
  const PublishInfo info = {
      .step = model.info.step, .items_consumed = model.info.items_consumed, .last = model.info.last};
  return Annotate(options_.commit_to->Commit(model.info.version, info, deadline),
                  absl::StrCat(ToString(model.info.version), " of model '", options_.model,
                               "' is published but not committed"));
}

void Publisher::RepairUntil(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      absl::MutexLock lock(&mutex_);
      if (AwaitFor(&mutex_, absl::Condition(&stopping_), options_.repair_every)) return;
    }
    Repair(stop);
  }
}

void Publisher::Repair(const std::stop_token& stop) {
  const auto due = [this](const std::shared_ptr<const Model>& model) {
    mutex_.AssertReaderHeld();
    return !publishing_ && refused_.ok() && last_ == model;
  };
  std::shared_ptr<const Model> model;
  bool late = false;
  {
    absl::MutexLock lock(&mutex_);
    model = last_;
    late = due_;
    if (model == nullptr || !due(model)) return;
  }
  if (!late) {
    const absl::StatusOr<ModelVersion> head =
        weights_->Head(options_.model, MonotonicNow() + kLookTime, stop);
    // A store that is away is looked at again.
    if (!head.ok() || *head == model->info.version) return;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!due(model)) return;
    repairing_ = true;
  }
  absl::Status repaired;
  absl::Duration time = kFirstRepair;
  do {
    // A commit to a store or a receiver that is away would block until its deadline, and the destructor with
    // it.
    repaired = weights_->Head(options_.model, MonotonicNow() + kLookTime, stop).status();
    if (repaired.ok() && options_.commit_to != nullptr) {
      repaired = options_.commit_to->Head(MonotonicNow() + kLookTime).status();
    }
    const absl::Time deadline = MonotonicNow() + time;
    if (repaired.ok()) repaired = weights_->Commit(model, deadline);
    if (repaired.ok()) repaired = Tell(*model, deadline);
    time = std::min(2 * time, kLongestRepair);
    const auto over = [this] {
      mutex_.AssertReaderHeld();
      return stopping_ || publishing_;
    };
    absl::MutexLock lock(&mutex_);
    if (MayPass(repaired) && AwaitFor(&mutex_, absl::Condition(&over), options_.repair_every)) break;
  } while (MayPass(repaired));
  if (repaired.ok()) {
    LogInfo(absl::StrCat("model '", options_.model, "': ", ToString(model->info.version),
                         late ? " is published now" : " was published again, because its store had lost it"));
  }
  absl::MutexLock lock(&mutex_);
  repairing_ = false;
  if (publishing_) return;  // Publish or Repeat says how it ends
  due_ = MayPass(repaired);
  if (!due_) refused_ = repaired;
}

}  // namespace tandem::weights
