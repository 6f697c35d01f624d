#include "worker/trainer/lookup_pipeline.h"

#include <utility>

#include "worker/trainer/lap_timer.h"

namespace tandem::worker {
LookupPipeline::LookupPipeline(ps::Client* client, const LookupPlan* plan, BatchReader* reader,
                               const PipelineOptions& options)
    : client_(client), plan_(plan), reader_(reader), options_(options), thread_([this] { LookupLoop(); }) {}

LookupPipeline::~LookupPipeline() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_under_way_ == 0; };
  mutex_.Await(absl::Condition(&idle));  // every call ends by its deadline
}

void LookupPipeline::FailLocked(const absl::Status& status) {
  if (error_.ok()) error_ = status;
}

std::unique_ptr<LookedUp> LookupPipeline::TakeRecycled() {
  {
    absl::MutexLock lock(&mutex_);
    if (!recycled_.empty()) {
      std::unique_ptr<LookedUp> batch = std::move(recycled_.back());
      recycled_.pop_back();
      return batch;
    }
  }
  return std::make_unique<LookedUp>(plan_);
}

bool LookupPipeline::AwaitRoom() {
  absl::MutexLock lock(&mutex_);
  auto room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !error_.ok() ||
           (static_cast<int>(ahead_.size()) < options_.lookahead &&
            (options_.read_only || unacknowledged_ < options_.max_in_flight));
  };
  mutex_.Await(absl::Condition(&room));
  if (stopped_ || !error_.ok()) return false;
  if (!options_.read_only) ++unacknowledged_;
  return true;
}

void LookupPipeline::LookupLoop() {
  uint64_t step = options_.first_step;
  PipelineTimes times;
  for (;;) {
    std::unique_ptr<LookedUp> batch = TakeRecycled();
    LapTimer lap;
    const absl::StatusOr<bool> more = reader_->Next(&batch->batch);
    lap.AddTo(&times.read);
    if (!more.ok() || !*more) {
      absl::MutexLock lock(&mutex_);
      if (!more.ok()) FailLocked(more.status());
      at_end_ = true;
      times_ = times;
      return;
    }
    batch->step = step;
    batch->answered = false;
    batch->status = absl::OkStatus();
    const absl::Status prepared = batch->lookup.Prepare(&batch->batch);
    lap.AddTo(&times.dedupe);
    const bool go = prepared.ok() && AwaitRoom();
    lap.AddTo(&times.permit);
    LookedUp* pulling = batch.get();
    {
      absl::MutexLock lock(&mutex_);
      times_ = times;
      if (!prepared.ok()) FailLocked(prepared);
      if (!go) {
        at_end_ = true;
        return;
      }
      ids_ += batch->lookup.ids();
      unique_ids_ += batch->lookup.unique_ids();
      ahead_.push_back(std::move(batch));
      ++calls_under_way_;
    }
    client_->PullAsync(step, options_.read_only, pulling->lookup.PullParts(),
                       [this, pulling](absl::StatusOr<ps::PullVersions> versions) {
                         absl::MutexLock lock(&mutex_);
                         if (versions.ok()) {
                           pulling->lookup.set_versions(*std::move(versions));
                         } else {
                           pulling->status = versions.status();
                         }
                         pulling->answered = true;
                         --calls_under_way_;
                       });
    if (!options_.read_only) ++step;
    lap.AddTo(&times.send);
  }
}

absl::StatusOr<std::unique_ptr<LookedUp>> LookupPipeline::Next() {
  absl::MutexLock lock(&mutex_);
  auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || (ahead_.empty() ? at_end_ : ahead_.front()->answered);
  };
  mutex_.Await(absl::Condition(&ready));
  if (!error_.ok()) return error_;
  if (ahead_.empty()) return nullptr;
  if (!ahead_.front()->status.ok()) {
    FailLocked(ahead_.front()->status);
    return error_;
  }
  std::unique_ptr<LookedUp> batch = std::move(ahead_.front());
  ahead_.pop_front();
  return batch;
}

void LookupPipeline::Push(std::unique_ptr<LookedUp> batch, std::vector<ps::PushPart> parts,
                          float learning_rate_factor) {
  {
    absl::MutexLock lock(&mutex_);
    ++calls_under_way_;
  }
  client_->PushAsync(batch->step, std::move(parts), learning_rate_factor, [this](absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) FailLocked(status);
    --unacknowledged_;
    --calls_under_way_;
  });
  Recycle(std::move(batch));
}

void LookupPipeline::Recycle(std::unique_ptr<LookedUp> batch) {
  absl::MutexLock lock(&mutex_);
  recycled_.push_back(std::move(batch));
}

absl::Status LookupPipeline::Drain() {
  absl::MutexLock lock(&mutex_);
  auto acknowledged = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || (unacknowledged_ == 0 && calls_under_way_ == 0);
  };
  mutex_.Await(absl::Condition(&acknowledged));
  return error_;
}

PipelineTimes LookupPipeline::times() const {
  absl::MutexLock lock(&mutex_);
  return times_;
}
uint64_t LookupPipeline::ids() const {
  absl::MutexLock lock(&mutex_);
  return ids_;
}
uint64_t LookupPipeline::unique_ids() const {
  absl::MutexLock lock(&mutex_);
  return unique_ids_;
}

}  // namespace tandem::worker
