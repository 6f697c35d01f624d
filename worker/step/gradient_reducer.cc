// SPDX-License-Identifier: Apache-2.0
#include "worker/step/gradient_reducer.h"

namespace tandem::worker {

GradientReducer::GradientReducer(collectives::ProcessGroup* group, size_t bucket_bytes)
    : group_(group != nullptr && group->world_size() > 1 ? group : nullptr), bucket_bytes_(bucket_bytes) {}

GradientReducer::~GradientReducer() {
  for (const collectives::Work& work : works_) (void)work.Wait();  // it uses the gradients until it is done
}

void GradientReducer::Begin(absl::Span<float> gradients) {
  gradients_ = gradients;
  pending_ = {0, 0};
  left_ = gradients.size();
}

void GradientReducer::Ready(size_t begin, size_t end) {
  if (group_ == nullptr || begin == end) return;
  left_ -= end - begin;
  if (pending_.first == pending_.second) {
    pending_ = {begin, end};
  } else if (end == pending_.first) {  // backward passes walk from the last layer to the first
    pending_.first = begin;
  } else if (begin == pending_.second) {
    pending_.second = end;
  } else {
    Send(/*wait=*/false);
    pending_ = {begin, end};
  }
  if (left_ > 0 && (pending_.second - pending_.first) * sizeof(float) >= bucket_bytes_) Send(/*wait=*/false);
}

void GradientReducer::Send(bool wait) {
  if (pending_.first == pending_.second || !error_.ok()) return;
  const absl::Span<float> bucket = gradients_.subspan(pending_.first, pending_.second - pending_.first);
  works_.push_back(group_->AllReduce(bucket, {.op = collectives::ReduceOp::kSum, .async = !wait}));
  pending_ = {0, 0};
}

absl::Status GradientReducer::Finish() {
  if (group_ == nullptr) return absl::OkStatus();
  Send(/*wait=*/true);
  // Waits for all operations, even after an error, because they use the gradients. Each ends by the group's
  // timeout.
  for (const collectives::Work& work : works_) {
    const absl::Status reduced = work.Wait();
    if (error_.ok()) error_ = reduced;
  }
  works_.clear();
  return error_;
}

}  // namespace tandem::worker
