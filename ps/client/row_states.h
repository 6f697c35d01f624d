// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROW_STATES_H_
#define TANDEM_PS_CLIENT_ROW_STATES_H_

// The types of the calls that find frequently updated rows, move rows between servers and workers, and scan
// tables (ps/client/client.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tandem::ps {

// A row that is updated often.
struct FrequentRow {
  uint64_t id = 0;
  // The expected number of the row's own updates while a gradient is on its way: update_rate * the mean
  // staleness of the table in updates.
  double row_staleness = 0;
  // The share of the table's updates in which the row was.
  double update_rate = 0;
};

// Whole rows with their optimizer state, in the order of the ids of the call.
struct RowStates {
  uint32_t dim = 0;           // weights of a row
  uint32_t state_floats = 0;  // optimizer state of a row (Optimizer::state_floats(dim))
  // [rows x row_floats()]: each row is its weights, then its state, laid out as ps/optimizers/optimizer.h
  // says.
  std::vector<float> values;
  std::vector<uint8_t> exists;  // [rows]: 1 if the server has the row, 0 if these are its initial values

  size_t row_floats() const { return size_t{dim} + state_floats; }
  float* row(size_t i) { return values.data() + i * row_floats(); }
  const float* row(size_t i) const { return values.data() + i * row_floats(); }
};

// Rows of one table, to be written. The arrays are the caller's.
struct TableRowStates {
  std::string table;
  absl::Span<const uint64_t> ids;     // distinct
  const RowStates* states = nullptr;  // of these ids; `exists` is ignored
};

// Where a scan of a table continues. The default is its beginning.
struct ScanPosition {
  uint32_t bucket = 0;
  uint64_t first_id = 0;
};

// Rows of a scan, in ascending order of bucket, then of id.
struct ScannedRows {
  std::vector<uint64_t> ids;
  RowStates states;  // of these rows; all exist
  ScanPosition next;
  bool at_end = false;  // no rows remain after these
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROW_STATES_H_
