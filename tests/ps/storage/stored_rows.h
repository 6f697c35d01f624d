// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_
#define TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_

// AllStoredRows reads everything that a table keeps, for comparison.

#include <map>
#include <vector>

#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {

struct StoredRow {
  std::vector<float> floats;  // embedding, state
  uint32_t version = 0;
  uint32_t count = 0;
  bool operator==(const StoredRow&) const = default;
};
using StoredRows = std::map<uint64_t, StoredRow>;

// Reads all rows with VisitBucket, which must visit each row once and a bucket's rows in ascending order of
// id.
inline StoredRows AllStoredRows(TableStorage* table, uint32_t num_buckets) {
  StoredRows rows;
  for (uint32_t b = 0; b < num_buckets; ++b) {
    uint64_t previous = 0;
    TANDEM_EXPECT_OK(table->VisitBucket(b, [&](uint64_t id, const float* row, const RowHistory& history) {
      EXPECT_TRUE(previous == 0 || id > previous);
      previous = id;
      EXPECT_TRUE(
          rows.emplace(id, StoredRow{{row, row + table->row_floats()}, history.version, history.count})
              .second);
    }));
  }
  return rows;
}

// Reads the same with VisitRows, `page` rows at a time. All pages of a bucket must be full except the last.
inline StoredRows StoredRowsByPages(TableStorage* table, uint32_t num_buckets, size_t page) {
  StoredRows rows;
  for (uint32_t b = 0; b < num_buckets; ++b) {
    uint64_t next = 0;
    bool more = true;
    while (more) {
      size_t visited = 0;
      const absl::StatusOr<bool> result =
          table->VisitRows(b, next, page, [&](uint64_t id, const float* row, const RowHistory& history) {
            EXPECT_GE(id, next);
            EXPECT_TRUE(
                rows.emplace(id, StoredRow{{row, row + table->row_floats()}, history.version, history.count})
                    .second);
            next = id + 1;
            ++visited;
          });
      TANDEM_EXPECT_OK(result);
      if (!result.ok()) return rows;
      more = *result;
      EXPECT_TRUE(more ? visited == page : visited <= page) << visited;
    }
  }
  return rows;
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_
