#ifndef TANDEM_BENCH_SUITES_ROW_MODEL_H_
#define TANDEM_BENCH_SUITES_ROW_MODEL_H_

// What the rows of the benchmark's table must hold: every push brings the same gradient for every number, so
// that a row is its initial value less a sum that depends on the number of its updates alone.

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

// The table: f32 rows, Adagrad, uniform initial values, asynchronous updates.
v1::TableConfig PsBenchTable(uint32_t dim, int workers);

// Not thread-safe.
class RowModel {
 public:
  // Every number of every gradient that is pushed.
  static constexpr float kGradient = 0.0625f;

  RowModel(const v1::TableConfig& config, uint64_t rows);

  // `times` updates of each id.
  void Push(absl::Span<const uint64_t> ids, uint32_t times);
  // DataLoss naming the id, the element, what it is and what it must be, unless rows[i] is the row of ids[i].
  absl::Status Check(absl::Span<const uint64_t> ids, const float* rows);
  // Row `i` of such a pull alone.
  absl::Status CheckOne(uint64_t id, const float* row);

 private:
  const uint32_t dim_;
  const uint64_t seed_;
  const double learning_rate_, epsilon_, initial_accumulator_;
  const std::unique_ptr<ps::Initializer> initializer_;
  std::vector<uint32_t> updates_;  // by id
  std::vector<double> moved_;      // by number of updates: how far they move a weight
  std::vector<float> initial_;     // of the row that is checked
};

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_ROW_MODEL_H_
