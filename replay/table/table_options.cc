// SPDX-License-Identifier: Apache-2.0
#include "replay/table/table_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::replay {
namespace {

constexpr size_t kMaxTableName = 128;
constexpr uint64_t kMaxItems = uint64_t{1} << 31;

absl::Status CheckName(absl::string_view name) {
  const bool legal = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' || c == '/';
  });
  if (legal && !name.empty() && name.size() <= kMaxTableName) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it must have 1 to ", kMaxTableName, " letters, digits, '_', '.', '-' or '/'"));
}

// Items of a paced queue are inserted without waiting for the limiter, so all that may be admitted must fit.
absl::Status CheckPaced(const TableOptions& options) {
  if (options.sampler.kind != SelectorKind::kFifo || options.remover.kind != SelectorKind::kFifo ||
      options.max_times_sampled != 1 || options.limit.samples_per_insert != 1 ||
      options.limit.min_size != 1) {
    return absl::InvalidArgumentError(
        "staleness 'pace' needs a queue: sampler and remover fifo, max_times_sampled 1, samples_per_insert "
        "1, "
        "min_size 1");
  }
  const StalenessOptions& staleness = options.staleness;
  const auto window = static_cast<double>(staleness.window());
  if (options.max_items >= staleness.window() && options.limit.max_diff >= window &&
      options.limit.min_diff <= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("staleness 'pace' admits up to (max_lag ", staleness.max_lag, " + 1) x batch ",
                   staleness.batch, " x every ", staleness.every, " = ", staleness.window(),
                   " items, and max_items is ", options.max_items, ", the window [min_diff, max_diff] [",
                   options.limit.min_diff, ", ", options.limit.max_diff, "]: both must hold so many"));
}

absl::Status CheckRest(const TableOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckName(options.name));
  TANDEM_RETURN_IF_ERROR(Annotate(CheckSelector(options.sampler), "sampler"));
  TANDEM_RETURN_IF_ERROR(Annotate(CheckSelector(options.remover), "remover"));
  TANDEM_RETURN_IF_ERROR(CheckLimit(options.limit));
  if (options.max_items < 1 || options.max_items > kMaxItems) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_items is ", options.max_items, "; it must be at least 1 and at most 2^31"));
  }
  if (options.limit.min_size > options.max_items) {
    return absl::InvalidArgumentError(absl::StrCat("min_size is ", options.limit.min_size, " and max_items ",
                                                   options.max_items, ": the table could never be sampled"));
  }
  if (options.max_times_sampled > 0 && options.limit.samples_per_insert > options.max_times_sampled &&
      !std::isinf(options.limit.max_diff)) {
    return absl::InvalidArgumentError(absl::StrCat("samples_per_insert is ", options.limit.samples_per_insert,
                                                   " and max_times_sampled ", options.max_times_sampled,
                                                   ": items would leave before they have been sampled so "
                                                   "often; raise max_times_sampled, or set it to 0"));
  }
  if (!(options.ttl >= absl::ZeroDuration() && options.ttl < absl::InfiniteDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat("ttl is ", absl::FormatDuration(options.ttl), "; it must be finite, 0 for none"));
  }
  TANDEM_RETURN_IF_ERROR(Annotate(CheckStaleness(options.staleness), "staleness"));
  if (options.staleness.kind == StalenessKind::kPace) TANDEM_RETURN_IF_ERROR(CheckPaced(options));
  if (!options.columns.empty()) TANDEM_RETURN_IF_ERROR(Signature::Make(options.columns).status());
  return absl::OkStatus();
}

}  // namespace

bool ItemsLeaveByThemselves(const TableOptions& options) {
  return options.max_times_sampled > 0 || options.ttl > absl::ZeroDuration() ||
         options.staleness.kind != StalenessKind::kNone;
}

TableOptions TableOptions::Queue(absl::string_view name, uint64_t size, uint32_t times) {
  return {.name = std::string(name),
          .sampler = {.kind = SelectorKind::kFifo},
          .max_items = size,
          .max_times_sampled = times,
          .limit = RateLimit::Queue(size, times)};
}

TableOptions TableOptions::Stack(absl::string_view name, uint64_t size) {
  TableOptions options = Queue(name, size);
  options.sampler.kind = SelectorKind::kLifo;
  return options;
}

TableOptions TableOptions::PacedQueue(absl::string_view name, uint32_t batch, uint32_t max_lag,
                                      uint32_t every, SlowRollouts slow) {
  const StalenessOptions staleness = {
      .kind = StalenessKind::kPace, .max_lag = max_lag, .batch = batch, .every = every, .slow = slow};
  TableOptions options = Queue(name, staleness.window());
  options.staleness = staleness;
  return options;
}

TableOptions TableOptions::Uniform(absl::string_view name, uint64_t size, uint64_t min_size) {
  return {.name = std::string(name), .max_items = size, .limit = RateLimit::MinSize(min_size)};
}

TableOptions TableOptions::Prioritized(absl::string_view name, uint64_t size, uint64_t min_size,
                                       double exponent) {
  TableOptions options = Uniform(name, size, min_size);
  options.sampler = {.kind = SelectorKind::kPrioritized, .exponent = exponent};
  return options;
}

absl::Status CheckTableOptions(const TableOptions& options) {
  return Annotate(CheckRest(options), absl::StrCat("table '", options.name, "'"));
}

}  // namespace tandem::replay
