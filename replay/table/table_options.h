// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_TABLE_TABLE_OPTIONS_H_
#define TANDEM_REPLAY_TABLE_TABLE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "replay/chunks/signature.h"
#include "replay/limiter/rate_limiter.h"
#include "replay/selectors/selector.h"
#include "replay/staleness/staleness_options.h"

namespace tandem::replay {

// The configuration of a table. A plain value.
struct TableOptions {
  std::string name;
  // Chooses the items that are sampled, and those that leave a full table.
  SelectorOptions sampler = {.kind = SelectorKind::kUniform};
  SelectorOptions remover = {.kind = SelectorKind::kFifo};
  // Budgets. A new item first removes others until it fits. A chunk counts once however many items refer to
  // it.
  uint64_t max_items = 1'000'000;
  uint64_t max_bytes = 0;  // of chunks; 0: no limit
  // An item is removed when it has been sampled this often; 0: never for this reason.
  uint32_t max_times_sampled = 0;
  RateLimit limit;
  // The columns of items. Empty: those of the first item that is inserted.
  std::vector<Column> columns;
  // Draw number i of the table is a function of (seed, i).
  uint64_t seed = 0;
  // Bounds the lag of items. kPace requires a queue that holds staleness.window() items, each sampled once.
  StalenessOptions staleness;
  // An item is removed at this age; ZeroDuration: never for this reason.
  absl::Duration ttl = absl::ZeroDuration();

  // A queue: items are sampled in the order of their insertion, `times` times each, and inserts wait while it
  // holds `size` items.
  static TableOptions Queue(absl::string_view name, uint64_t size, uint32_t times = 1);
  // A queue whose newest item is sampled first.
  static TableOptions Stack(absl::string_view name, uint64_t size);
  // A queue whose rollouts are admitted so that items lag at most `max_lag` commits behind the learner, which
  // consumes `batch` items in an update and commits a version after every `every` updates.
  static TableOptions PacedQueue(absl::string_view name, uint32_t batch, uint32_t max_lag, uint32_t every = 1,
                                 SlowRollouts slow = SlowRollouts::kWait);
  // Experience replay: uniform samples of the newest `size` items, once there are `min_size`.
  static TableOptions Uniform(absl::string_view name, uint64_t size, uint64_t min_size);
  // Prioritized experience replay, likewise.
  static TableOptions Prioritized(absl::string_view name, uint64_t size, uint64_t min_size,
                                  double exponent = 0.6);

  friend bool operator==(const TableOptions&, const TableOptions&) = default;
};

// Returns true if items leave the table though none are inserted: they are sampled a number of times, or grow
// old.
bool ItemsLeaveByThemselves(const TableOptions& options);

// InvalidArgument, which begins with the table's name and names the option, if an option is out of range, or
// if the table could come to a standstill: a limit that CheckLimit refuses, min_size above max_items, or a
// paced queue that does not hold all items that may be admitted.
// Names have 1 to 128 letters, digits, '_', '.', '-' or '/'.
absl::Status CheckTableOptions(const TableOptions& options);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_TABLE_TABLE_OPTIONS_H_
