// SPDX-License-Identifier: Apache-2.0
// Checks of requests to a table.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "replay/table/table.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxBatch = uint32_t{1} << 20;

}  // namespace

absl::Status Table::CheckItems(absl::Span<const NewItem> items) {
  std::shared_ptr<const Signature> signature = signature_;
  std::shared_ptr<const ItemLayout> layout = checked_layout_;
  for (const NewItem& item : items) {
    if (item.trajectory == nullptr) return absl::InvalidArgumentError("an item has no content");
    TANDEM_RETURN_IF_ERROR(item.trajectory->Check());
    if (item.priority) TANDEM_RETURN_IF_ERROR(store_.CheckPriority(*item.priority));
    TANDEM_RETURN_IF_ERROR(store_.FitsAlone(*item.trajectory));
    if (item.trajectory->layout == layout) continue;
    layout = item.trajectory->layout;
    if (signature == nullptr) signature = layout->items;
    if (layout->items->columns() != signature->columns()) {
      return absl::InvalidArgumentError(absl::StrCat("an item has columns ", layout->items->ToString(),
                                                     "; the table has ", signature->ToString()));
    }
  }
  if (items.empty()) return absl::OkStatus();
  signature_ = std::move(signature);
  checked_layout_ = std::move(layout);
  return absl::OkStatus();
}

absl::Status Table::CheckSize(const SampleSize& size) const {
  if (size.batch < 1 || size.batch > kMaxBatch || size.min_batch > size.batch) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", size.batch, " items, at least ",
                                                   size.min_batch, ": the batch must be in [1, ", kMaxBatch,
                                                   "] and at least min_batch"));
  }
  RateLimit limit = options_.limit;
  if (options_.max_times_sampled > 0) limit.min_diff = std::max(limit.min_diff, 0.0);  // see AfterRemovals
  uint64_t largest = LargestBatch(limit);
  if (options_.max_times_sampled > 0) {
    largest = std::min(largest, options_.max_items * options_.max_times_sampled);
  }
  if (pace_ != nullptr && size.least() > options_.staleness.window()) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", size.least(), " items; at most ",
                                                   options_.staleness.window(),
                                                   " are admitted, (max_lag + 1) x batch x every"));
  }
  if (size.least() <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a batch of ", size.least(), " items may never be there: with samples_per_insert ",
                   options_.limit.samples_per_insert, " and the window [", options_.limit.min_diff, ", ",
                   options_.limit.max_diff, "] inserts may stop at ", largest, "; ask for at most ", largest,
                   ", set min_batch, or widen the window"));
}

absl::Status Table::CheckAdmit(const AdmitRequest& request) const {
  if (pace_ == nullptr) {
    return absl::FailedPreconditionError("it admits all rollouts: its staleness is not 'pace'");
  }
  if (request.count < 1 || request.count > options_.staleness.window()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.count, " rollouts; the number must be in [1, ", options_.staleness.window(),
                     "], because (max_lag + 1) x batch x every are admitted at most"));
  }
  return pace_->Replace(request);
}

absl::StatusOr<uint64_t> Table::Fitting(uint64_t n, const SampleSize& size) {
  if (size.max_bytes == 0) return n;
  const uint64_t fitting = pace_ == nullptr ? store_.DrawsWithin(n, size.max_bytes)
                                            : store_.ItemsWithin(pace_->NextSlots(n), size.max_bytes);
  const uint64_t least = size.least();
  if (fitting >= least) return fitting;
  const uint64_t largest = store_.largest_item();
  const std::string limit =
      absl::StrCat("an item has up to ", largest, " bytes, and a response may have ", size.max_bytes, ": ");
  return absl::ResourceExhaustedError(
      largest > size.max_bytes
          ? absl::StrCat(limit, "insert items of fewer steps")
          : absl::StrCat("a batch of ", least, " items is too large: ", limit, "ask for at most ",
                         std::max(fitting, size.max_bytes / largest), ", or set min_batch"));
}

}  // namespace tandem::replay
