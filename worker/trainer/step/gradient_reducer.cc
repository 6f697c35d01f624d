#include "worker/trainer/step/gradient_reducer.h"

namespace tandem::worker {

GradientReducer::GradientReducer(collectives::ProcessGroup* group, size_t bucket_floats)
    : group_(group != nullptr && group->world_size() > 1 ? group : nullptr), bucket_floats_(bucket_floats) {}

GradientReducer::~GradientReducer() {
  for (const collectives::Work& work : works_) (void)work.Wait();  // until then the gradients are theirs
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
  if (pending_.first == pending_.second || !error_.ok()) return;
  const absl::Span<float> bucket = gradients_.subspan(pending_.first, pending_.second - pending_.first);
  works_.push_back(group_->AllReduce(bucket, {.op = collectives::ReduceOp::kSum, .async = true}));
  pending_ = {0, 0};
}

absl::Status GradientReducer::Finish() {
  if (group_ == nullptr) return absl::OkStatus();
  Flush();
  // All of them, for the gradients are theirs until then; each ends by the group's time-out.
  for (const collectives::Work& work : works_) {
    const absl::Status reduced = work.Wait();
    if (error_.ok()) error_ = reduced;
  }
  works_.clear();
  return error_;
}

}  // namespace tandem::worker
