// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/hot_set.h"

#include <algorithm>
#include <tuple>

namespace tandem::ps {

std::vector<HotSetChange> DecideHotSet(absl::Span<const HotSetTable> tables, const HotSetOptions& options,
                                       uint64_t* refused) {
  struct Entry {
    bool wanted;
    double staleness;
    bool replicated;
    uint64_t id;
    size_t table;
  };
  std::vector<HotSetChange> changes(tables.size());
  std::vector<Entry> entries;
  for (size_t t = 0; t < tables.size(); ++t) {
    for (const HotRow& row : tables[t].replicated) {
      if (row.wanted || row.staleness >= options.min_staleness * options.keep_fraction) {
        // Rows in place are ahead of candidates that are a little hotter, which would soon be behind again.
        entries.push_back({row.wanted, row.staleness / options.keep_fraction, true, row.id, t});
      } else {
        changes[t].removed.push_back(row.id);
      }
    }
    for (const HotRow& row : tables[t].candidates) {
      if (row.wanted || row.staleness > options.min_staleness) {
        entries.push_back({row.wanted, row.staleness, false, row.id, t});
      }
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::make_tuple(!a.wanted, -a.staleness, !a.replicated, a.table, a.id) <
           std::make_tuple(!b.wanted, -b.staleness, !b.replicated, b.table, b.id);
  });
  uint64_t left = options.budget_bytes;
  *refused = 0;
  for (const Entry& entry : entries) {
    const uint64_t bytes = tables[entry.table].bytes_per_row;
    if (bytes > left) {
      ++*refused;
      if (entry.replicated) changes[entry.table].removed.push_back(entry.id);
      continue;
    }
    left -= bytes;
    if (!entry.replicated) changes[entry.table].added.push_back(entry.id);
  }
  return changes;
}

}  // namespace tandem::ps
