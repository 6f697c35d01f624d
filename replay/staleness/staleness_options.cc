// SPDX-License-Identifier: Apache-2.0
#include "replay/staleness/staleness_options.h"

#include "absl/strings/str_cat.h"

namespace tandem::replay {
namespace {

constexpr uint32_t kMaxLag = 1'000'000;
constexpr uint64_t kMaxWindow = uint64_t{1} << 31;
constexpr absl::Duration kShortestLease = absl::Milliseconds(100);
constexpr absl::Duration kLongestRollout = absl::Hours(24 * 365);

}  // namespace

absl::string_view Name(StalenessKind kind) {
  switch (kind) {
    case StalenessKind::kNone:
      return "none";
    case StalenessKind::kPace:
      return "pace";
    case StalenessKind::kEvict:
      return "evict";
  }
  return "unknown staleness";
}

absl::string_view Name(SlowRollouts slow) {
  switch (slow) {
    case SlowRollouts::kWait:
      return "wait";
    case SlowRollouts::kTake:
      return "take";
    case SlowRollouts::kDrop:
      return "drop";
  }
  return "unknown";
}

absl::StatusOr<SlowRollouts> ParseSlowRollouts(absl::string_view name) {
  for (const SlowRollouts slow : {SlowRollouts::kWait, SlowRollouts::kTake, SlowRollouts::kDrop}) {
    if (Name(slow) == name) return slow;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("slow rollouts: '", name, "'; it must be wait, take or drop"));
}

absl::Status CheckStaleness(const StalenessOptions& options) {
  if (options.kind > StalenessKind::kEvict) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown staleness ", static_cast<int>(options.kind), "; this program is older"));
  }
  if (options.slow > SlowRollouts::kDrop) {
    return absl::InvalidArgumentError(
        absl::StrCat("slow is ", static_cast<int>(options.slow), "; it must be wait, take or drop"));
  }
  if (options.max_lag > kMaxLag) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_lag is ", options.max_lag, "; it must be at most ", kMaxLag));
  }
  if (options.kind != StalenessKind::kPace) return absl::OkStatus();
  if (options.batch < 1 || options.every < 1) {
    return absl::InvalidArgumentError(absl::StrCat("batch is ", options.batch, " and every is ",
                                                   options.every, "; both must be at least 1"));
  }
  if (uint64_t{options.batch} * options.every > kMaxWindow || options.window() > kMaxWindow) {
    return absl::InvalidArgumentError(absl::StrCat("(max_lag + 1) x batch x every is (", options.max_lag,
                                                   " + 1) x ", options.batch, " x ", options.every,
                                                   "; it must be at most 2^31"));
  }
  if (!(options.lease >= kShortestLease && options.lease <= options.max_rollout &&
        options.max_rollout <= kLongestRollout)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lease is ", absl::FormatDuration(options.lease), " and max_rollout ",
        absl::FormatDuration(options.max_rollout), "; lease must be at least ",
        absl::FormatDuration(kShortestLease), ", and max_rollout at least as long and at most a year"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::replay
