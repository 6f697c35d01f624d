// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_ROW_MODEL_H_
#define TANDEM_BENCH_SUITES_ROW_MODEL_H_

// Computes the expected rows of the benchmark's table. Every push carries the same gradient for every number,
// so a row is its initial value less a sum that depends only on its number of updates.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ps/policies/initializer.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::bench {

inline constexpr char kPsTable[] = "rows";

// Returns the table's configuration: f32 rows, Adagrad, uniform initial values, asynchronous updates.
v1::TableConfig PsBenchTable(uint32_t dim, int workers);

// Counts the updates of each id and checks rows. Not thread-safe.
class RowModel {
 public:
  // The value of every number in every pushed gradient.
  static constexpr float kGradient = 0.0625f;

  RowModel(const v1::TableConfig& config, uint64_t rows);

  // Records `times` updates of each id.
  void Push(absl::Span<const uint64_t> ids, uint32_t times);
  // Returns DataLoss, naming id, element, actual and expected value, unless rows[i] is the row of ids[i] for
  // all i.
  absl::Status Check(absl::Span<const uint64_t> ids, const float* rows);
  // Checks one row in the same way.
  absl::Status CheckOne(uint64_t id, const float* row);

 private:
  const uint32_t dim_;
  const uint64_t seed_;
  const double learning_rate_, epsilon_, initial_accumulator_;
  const std::unique_ptr<ps::Initializer> initializer_;
  std::vector<uint32_t> updates_;     // by id
  std::vector<double> total_change_;  // by number of updates: the change of a weight
  std::vector<float> initial_;        // of the row being checked
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_ROW_MODEL_H_
