// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_REPLICATED_HOT_SET_H_
#define TANDEM_PS_REPLICATED_HOT_SET_H_

// Decides which rows of a job's tables are replicated in the workers: the hot set. A row belongs to it if
// asynchronous training would update the row often between a gradient's pull and its push.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// A row and its staleness: the number of its own updates within the delay of a push, measured by the servers
// for rows that live there, and computed from the rate of its updates for replicated rows.
struct HotRow {
  uint64_t id = 0;
  double staleness = 0;
  bool wanted = false;  // replicated whatever its staleness, within the budget
};

// The rows of one table that the decision is about.
struct HotSetTable {
  uint64_t bytes_per_row = 0;
  std::vector<HotRow> replicated;  // replicated now
  std::vector<HotRow> candidates;  // on the servers now
};

struct HotSetOptions {
  // Rows whose staleness exceeds this join.
  double min_staleness = 1.0;
  // A replicated row stays while its staleness is at least this part of min_staleness, so that a row near the
  // limit does not move to and fro.
  double keep_fraction = 0.5;
  // Memory for the rows of all tables.
  uint64_t budget_bytes = uint64_t{64} << 20;
};

// The difference between two hot sets of a table.
struct HotSetChange {
  std::vector<uint64_t> removed;
  std::vector<uint64_t> added;
};

// Returns the change of each table. Wanted rows come first, then the rows with the largest staleness, until
// the budget is used up; among equals, replicated rows come first. `refused` is set to the number of rows
// that the budget refused.
std::vector<HotSetChange> DecideHotSet(absl::Span<const HotSetTable> tables, const HotSetOptions& options,
                                       uint64_t* refused);

}  // namespace tandem::ps

#endif  // TANDEM_PS_REPLICATED_HOT_SET_H_
