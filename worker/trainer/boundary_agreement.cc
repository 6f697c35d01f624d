// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/boundary_agreement.h"

#include <algorithm>

#include "absl/types/span.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(250);
constexpr double kMostSteps = 64;

}  // namespace

// Numbers of which every rank learns the largest.
struct BoundaryAgreement::Notes {
  double stop = 0;      // 1: this worker was asked to stop
  double save = 0;      // 1: a checkpoint is due
  double interval = 0;  // of rank 0
  double batches = 0;   // that this worker has read
};

BoundaryAgreement::BoundaryAgreement(collectives::ProcessGroup* group, const std::atomic<bool>* stop,
                                     absl::Duration every, Clock* clock)
    : group_(group),
      stop_(stop),
      every_(every),
      clock_(clock),
      last_exchange_(clock->Now()),
      last_checkpoint_(last_exchange_) {}

absl::Status BoundaryAgreement::Exchange(Notes* notes) {
  double values[] = {notes->stop, notes->save, notes->interval, notes->batches};
  TANDEM_RETURN_IF_ERROR(
      group_->AllReduce(absl::MakeSpan(values), {.op = collectives::ReduceOp::kMax}).status());
  *notes = {.stop = values[0], .save = values[1], .interval = values[2], .batches = values[3]};
  if (notes->stop > 0) must_stop_ = true;
  if (notes->save > 0) save_due_ = true;
  return absl::OkStatus();
}

absl::Status BoundaryAgreement::AfterStep(SegmentReader* reader) {
  const bool needed = stop_ != nullptr || every_ > absl::ZeroDuration();
  if (!needed || agreed_ || ++steps_ < interval_) return absl::OkStatus();
  Notes notes;
  if (group_->rank() == 0) {
    const absl::Time now = clock_->Now();
    const double a_step =
        std::max(1e-9, absl::ToDoubleSeconds(now - last_exchange_) / static_cast<double>(steps_));
    notes.interval = std::clamp(absl::ToDoubleSeconds(kInterval) / a_step, 1.0, kMostSteps);
    notes.save = every_ > absl::ZeroDuration() && now - last_checkpoint_ >= every_ ? 1 : 0;
    last_exchange_ = now;
  }
  notes.stop = stop_ != nullptr && stop_->load(std::memory_order_relaxed) ? 1 : 0;
  // No worker reads on while they compare how far they have read.
  const uint64_t end = reader->end();
  notes.batches = static_cast<double>(reader->Freeze());
  const absl::Status exchanged = Exchange(&notes);
  steps_ = 0;
  interval_ = static_cast<uint64_t>(std::max(1.0, notes.interval));
  agreed_ = exchanged.ok() && (notes.stop > 0 || notes.save > 0);
  reader->Continue(agreed_ ? std::min(end, static_cast<uint64_t>(notes.batches)) : end);
  return exchanged;
}

absl::StatusOr<bool> BoundaryAgreement::MustStop() {
  if (stop_ == nullptr || must_stop_) return must_stop_;
  Notes notes{.stop = stop_->load(std::memory_order_relaxed) ? 1.0 : 0.0};
  TANDEM_RETURN_IF_ERROR(Exchange(&notes));
  return must_stop_;
}

void BoundaryAgreement::NoteCheckpoint() {
  save_due_ = false;
  last_checkpoint_ = clock_->Now();
}

}  // namespace tandem::worker
