// SPDX-License-Identifier: Apache-2.0
#include "worker/step/replica_reducer.h"

#include <utility>

#include "base/status.h"

namespace tandem::worker {

ReplicaReducer::ReplicaReducer(collectives::ProcessGroup* group, ps::ReplicatedTables* replicas,
                               size_t dense_bytes)
    : group_(group != nullptr && group->world_size() > 1 ? group : nullptr),
      replicas_(replicas),
      dense_bytes_(dense_bytes) {}

ReplicaReducer::~ReplicaReducer() {
  for (const collectives::Work& work : works_) (void)work.Wait();  // it uses the gradients until it is done
}

void ReplicaReducer::Begin() {
  if (group_ == nullptr || replicas_ == nullptr) return;
  small_.clear();
  large_.clear();
  for (size_t t = 0; t < replicas_->size(); ++t) {
    ps::ReplicatedRows* const rows = replicas_->table(t);
    if (rows == nullptr || rows->size() == 0) continue;
    const absl::Span<float> gradients = rows->exchange();
    if (gradients.size() * sizeof(float) > dense_bytes_) {
      large_.push_back(rows);
    } else {
      small_.emplace_back(gradients);
      sent_bytes_ += gradients.size() * sizeof(float);
    }
  }
  if (small_.empty()) return;
  works_.push_back(group_->AllReduceCoalesced(small_, {.op = collectives::ReduceOp::kSum, .async = true}));
}

absl::Status ReplicaReducer::Finish() {
  absl::Status status;
  for (const collectives::Work& work : works_) status.Update(work.Wait());
  works_.clear();
  TANDEM_RETURN_IF_ERROR(status);
  return large_.empty() ? absl::OkStatus() : FinishLarge();
}

absl::Status ReplicaReducer::FinishLarge() {
  const size_t tables = large_.size(), ranks = static_cast<size_t>(group_->world_size());
  std::vector<int64_t> mine(tables), all(tables * ranks);
  for (size_t i = 0; i < tables; ++i) mine[i] = static_cast<int64_t>(large_[i]->touched());
  TANDEM_RETURN_IF_ERROR(group_->AllGather(absl::MakeConstSpan(mine), absl::MakeSpan(all)).status());
  for (size_t i = 0; i < tables; ++i) {
    std::vector<uint64_t> counts(ranks);
    uint64_t touched = 0;
    for (size_t r = 0; r < ranks; ++r) touched += counts[r] = static_cast<uint64_t>(all[r * tables + i]);
    const absl::Span<float> gradients = large_[i]->exchange();
    if (touched * large_[i]->packed_floats() >= gradients.size()) {
      sent_bytes_ += gradients.size() * sizeof(float);
      TANDEM_RETURN_IF_ERROR(group_->AllReduce(gradients, {.op = collectives::ReduceOp::kSum}).status());
    } else if (touched > 0) {
      TANDEM_RETURN_IF_ERROR(GatherTouched(large_[i], counts));
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaReducer::GatherTouched(ps::ReplicatedRows* rows, absl::Span<const uint64_t> counts) {
  packed_.clear();
  rows->TakeTouched(&packed_);
  sent_bytes_ += packed_.size() * sizeof(float);
  gathered_.resize(counts.size());
  std::vector<TensorView> outs;
  for (size_t r = 0; r < counts.size(); ++r) {
    gathered_[r].resize(counts[r] * rows->packed_floats());
    outs.emplace_back(absl::MakeSpan(gathered_[r]));
  }
  TANDEM_RETURN_IF_ERROR(group_->AllGather(absl::MakeConstSpan(packed_), outs).status());
  for (const std::vector<float>& theirs : gathered_) TANDEM_RETURN_IF_ERROR(rows->AddTouched(theirs));
  return absl::OkStatus();
}

}  // namespace tandem::worker
