// SPDX-License-Identifier: Apache-2.0
#include "worker/step/lookup_pipeline.h"

#include <utility>

#include "worker/step/lap_timer.h"
#include "worker/step/trace_kinds.h"

namespace tandem::worker {
LookupPipeline::LookupPipeline(ps::Client* client, const LookupPlan* plan, BatchReader* reader,
                               const PipelineOptions& options)
    : client_(client), plan_(plan), reader_(reader), options_(options), served_(NoneServed(*plan)) {
  lookup_thread_ = std::thread([this] {
    trace::NameThread("lookup");
    LookupLoop();
  });
  if (options.read_only) return;
  push_thread_ = std::thread([this] {
    trace::NameThread("push");
    PushLoop();
  });
}

LookupPipeline::~LookupPipeline() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  lookup_thread_.join();
  if (push_thread_.joinable()) push_thread_.join();
  // Destroyed after the lock is released: the deleters of the batches take it.
  std::deque<std::shared_ptr<LookedUp>> unused;
  absl::MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_in_flight_ == 0; };
  mutex_.Await(absl::Condition(&idle));  // every call ends by its own deadline
  unused.swap(pulled_);
}

void LookupPipeline::FailLocked(const absl::Status& status) {
  if (error_.ok()) error_ = status;
}

std::shared_ptr<LookedUp> LookupPipeline::TakeRecycled() {
  std::unique_ptr<LookedUp> batch;
  {
    absl::MutexLock lock(&mutex_);
    if (!recycled_.empty()) {
      batch = std::move(recycled_.back());
      recycled_.pop_back();
    }
  }
  if (batch == nullptr) batch = std::make_unique<LookedUp>(plan_, options_.replicas);
  return {batch.release(), [this](LookedUp* unused) {
            absl::MutexLock lock(&mutex_);
            recycled_.emplace_back(unused);
          }};
}

void LookupPipeline::AddLookupTimes(const PipelineTimes& times) {
  times_.read += times.read;
  times_.dedupe += times.dedupe;
  times_.permit += times.permit;
}

bool LookupPipeline::AcquirePermit() {
  absl::MutexLock lock(&mutex_);
  auto may_proceed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !error_.ok() ||
           (static_cast<int>(pulled_.size()) < options_.lookahead &&
            (options_.read_only || permits_in_use_ < options_.max_in_flight));
  };
  mutex_.Await(absl::Condition(&may_proceed));
  if (stopped_ || !error_.ok()) return false;
  if (!options_.read_only) ++permits_in_use_;
  return true;
}

void LookupPipeline::LookupLoop() {
  uint64_t step = options_.first_step;
  for (;;) {
    PipelineTimes times;  // this batch's
    std::shared_ptr<LookedUp> batch = TakeRecycled();
    LapTimer lap;
    const absl::StatusOr<bool> more = reader_->Next(&batch->batch);
    lap.AddTo(&times.read, kTraceWaitBatch);
    if (!more.ok() || !*more) {
      absl::MutexLock lock(&mutex_);
      if (!more.ok()) FailLocked(more.status());
      at_end_ = true;
      AddLookupTimes(times);
      return;
    }
    batch->step = step;
    batch->pull_done = false;
    batch->status = absl::OkStatus();
    const absl::Status prepared = batch->lookup.Prepare(&batch->batch);
    if (prepared.ok() && !options_.read_only) batch->lookup.CountForChoice();
    lap.AddTo(&times.dedupe, kTraceDedupe, static_cast<int64_t>(batch->lookup.ids()),
              static_cast<int64_t>(batch->lookup.unique_ids()));
    const bool go = prepared.ok() && AcquirePermit();
    lap.AddTo(&times.permit, kTracePermit);
    LookedUp* pulling = batch.get();
    {
      absl::MutexLock lock(&mutex_);
      AddLookupTimes(times);
      if (!prepared.ok()) FailLocked(prepared);
      if (!go) {
        at_end_ = true;
        return;
      }
      ids_ += batch->lookup.ids();
      unique_ids_ += batch->lookup.unique_ids();
      AddServed(batch->lookup.served(), &served_);
      pulled_.push_back(std::move(batch));
      ++calls_in_flight_;
    }
    client_->PullAsync(step, options_.read_only, pulling->lookup.PullParts(),
                       [this, pulling](absl::StatusOr<ps::PullVersions> versions) {
                         absl::MutexLock lock(&mutex_);
                         if (versions.ok()) {
                           pulling->lookup.set_versions(*std::move(versions));
                         } else {
                           pulling->status = versions.status();
                         }
                         pulling->pull_done = true;
                         --calls_in_flight_;
                       });
    lap.AddTo(&times.send, kTraceSendPull, static_cast<int64_t>(step));
    if (!options_.read_only) ++step;
    absl::MutexLock lock(&mutex_);
    times_.send += times.send;
  }
}

absl::StatusOr<std::shared_ptr<LookedUp>> LookupPipeline::Next() {
  absl::MutexLock lock(&mutex_);
  auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || (pulled_.empty() ? at_end_ : pulled_.front()->pull_done);
  };
  mutex_.Await(absl::Condition(&ready));
  if (!error_.ok()) return error_;
  if (pulled_.empty()) return nullptr;
  if (!pulled_.front()->status.ok()) {
    FailLocked(pulled_.front()->status);
    return error_;
  }
  std::shared_ptr<LookedUp> batch = std::move(pulled_.front());
  pulled_.pop_front();
  return batch;
}

void LookupPipeline::Push(std::shared_ptr<LookedUp> batch, float learning_rate_factor) {
  absl::MutexLock lock(&mutex_);
  to_push_.emplace_back(std::move(batch), learning_rate_factor);
}

void LookupPipeline::PushLoop() {
  for (;;) {
    std::shared_ptr<LookedUp> batch;
    float factor;
    {
      absl::MutexLock lock(&mutex_);
      auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !to_push_.empty(); };
      mutex_.Await(absl::Condition(&work));
      if (to_push_.empty()) return;
      batch = std::move(to_push_.front().first);
      factor = to_push_.front().second;
      to_push_.pop_front();
      ++calls_in_flight_;
    }
    LapTimer lap;
    double scatter = 0, push = 0;
    std::vector<ps::PushPart> parts = batch->lookup.Scatter();
    const auto step = static_cast<int64_t>(batch->step);
    lap.AddTo(&scatter, kTraceScatter, step);
    client_->PushAsync(batch->step, std::move(parts),
                       {.learning_rate_factor = factor, .batch_share = options_.batch_share},
                       [this](absl::Status status) {
                         absl::MutexLock lock(&mutex_);
                         if (!status.ok()) FailLocked(status);
                         --permits_in_use_;
                         --calls_in_flight_;
                       });
    lap.AddTo(&push, kTraceSendPush, step);
    absl::MutexLock lock(&mutex_);
    times_.scatter += scatter;
    times_.push += push;
  }
}

absl::Status LookupPipeline::Drain() {
  absl::MutexLock lock(&mutex_);
  auto acknowledged = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || (permits_in_use_ == 0 && calls_in_flight_ == 0);
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
ServedCounts LookupPipeline::served() const {
  absl::MutexLock lock(&mutex_);
  return served_;
}

}  // namespace tandem::worker
