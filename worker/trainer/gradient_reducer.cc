#include "worker/trainer/gradient_reducer.h"

#include <algorithm>

namespace tandem::worker {

GradientReducer::GradientReducer(collectives::ProcessGroup* group, size_t bucket_floats)
    : group_(group != nullptr && group->world_size() > 1 ? group : nullptr), bucket_floats_(bucket_floats) {
  if (group_ != nullptr) thread_ = std::thread([this] { ReduceLoop(); });
}

GradientReducer::~GradientReducer() {
  if (group_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
}

void GradientReducer::Begin(absl::Span<float> gradients) {
  gradients_ = gradients;
  pending_ = {0, 0};
}

void GradientReducer::Ready(size_t begin, size_t end) {
  if (group_ == nullptr || begin == end) return;
  if (pending_.first == pending_.second) {
    pending_ = {begin, end};
  } else if (end == pending_.first) {  // backward passes walk from the last layer to the first
    pending_.first = begin;
  } else if (begin == pending_.second) {
    pending_.second = end;
  } else {
    Flush();
    pending_ = {begin, end};
  }
  if (pending_.second - pending_.first >= bucket_floats_) Flush();
}

void GradientReducer::Flush() {
  if (pending_.first == pending_.second) return;
  absl::MutexLock lock(&mutex_);
  queue_.push_back(gradients_.subspan(pending_.first, pending_.second - pending_.first));
  pending_ = {0, 0};
}

absl::Status GradientReducer::Finish() {
  if (group_ == nullptr) return absl::OkStatus();
  Flush();
  absl::MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.empty() && !busy_; };
  mutex_.Await(absl::Condition(&idle));  // each all_reduce ends by the group's timeout
  return error_;
}

void GradientReducer::ReduceLoop() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !queue_.empty(); };
    mutex_.Await(absl::Condition(&work));
    if (queue_.empty()) return;
    absl::Span<float> bucket = queue_.front();
    queue_.pop_front();
    if (!error_.ok()) continue;  // the group is broken: let Finish return
    busy_ = true;
    mutex_.Unlock();
    const absl::Status reduced = group_->AllReduce(bucket, collectives::ReduceOp::kSum);
    mutex_.Lock();
    busy_ = false;
    if (!reduced.ok()) error_ = reduced;
  }
}

}  // namespace tandem::worker
