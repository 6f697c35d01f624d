#ifndef TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_
#define TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_

// How a gradient changes a row. Servers apply these to table rows; workers apply the same ones to dense
// parameters, each parameter being one long row.
//
// Results are the same bits with every vector instruction set: elements are computed alone with correctly
// rounded operations and no fused multiply-add, and the one sum over a row (row-wise Adagrad) has a fixed
// order. Only powers (Adam's bias correction; FTRL with a learning_rate_power other than -0.5) depend on the
// C library.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// One row and its gradient. The three arrays do not overlap; any float alignment will do.
struct RowUpdate {
  float* weights;                     // [dim]
  float* state;                       // [state_floats(dim)]; ignored where that is 0
  const float* gradient;              // [dim], finite
  float learning_rate_factor = 1.0f;  // beside Update's
};

// Immutable and thread-safe; rows are not: no row may be in two calls at a time, nor twice in one.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual absl::string_view kind() const = 0;
  // Floats of state that a row of `dim` weights needs. Any dim >= 1 is allowed.
  virtual size_t state_floats(size_t dim) const = 0;
  // The state of a row that holds its initial weights.
  virtual void InitState(const float* weights, float* state, size_t dim) const = 0;
  // One optimizer step on each row, with learning_rate * learning_rate_factor (a schedule's factor; 1 without
  // one). Takes many rows a call so that the choice of instruction set is paid for once.
  virtual void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor) const = 0;
  // The part of the learning rate that update number `update` (from 1) of a table or parameter uses; the
  // caller multiplies it into Update's factor. 1 unless the optimizer warms up.
  virtual float WarmUp(uint64_t update) const { return 1.0f; }
};

// The optimizer that `config` describes. InvalidArgument names the field, its value and what is allowed.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::OptimizerConfig& config);

// The kinds MakeOptimizer knows.
absl::Span<const absl::string_view> OptimizerKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_
