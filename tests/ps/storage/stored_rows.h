#ifndef TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_
#define TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_

// All that a table keeps, to be compared.

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

// By VisitBucket, which must give each row once and those of a bucket in ascending order.
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

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_STORAGE_STORED_ROWS_H_
