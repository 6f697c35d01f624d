// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_
#define TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_

// Optimizers change the rows of a table by gradients. The parameter servers apply them, to rows of EMBEDDING
// and of DENSE tables alike. The dense parameters that workers keep themselves have optimizers of their own
// (worker/nn/dense_optimizer.h).
//
// Optimizers need no server: a worker that keeps replicas of rows applies the same optimizer to arrays of its
// own, and gets the same bits. A row is `dim` weights and state_floats(dim) floats of state, wherever they
// lie; Client::ReadRowStates and WriteRowStates move both. The state of a row is, by kind:
//
//   sgd               none
//   momentum          velocity[dim]
//   adagrad           accumulator[dim]
//   rowwise_adagrad   accumulator[1]
//   adam, adamw       m[dim], v[dim], t[1]: the averages of g and g^2, the number of the row's updates
//   amsgrad           m[dim], v[dim], u[dim]: u is the largest v so far
//   ftrl              z[dim], n[dim]
//
// Checkpoints contain the state, so its layout does not change. A server also multiplies the learning rate by
// WarmUp(version of the table); a worker that updates replicas must do the same.
//
// Results are the same bits with every vector instruction set:
//
// - Elements are computed one by one with correctly rounded operations and without fused multiply-add.
//
// - Sums over a row (row-wise Adagrad, clipping) have a fixed order.
//
// Only powers depend on the C library: Adam's bias correction, and FTRL with a learning_rate_power other than
// -0.5.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// One row and its gradient. The three arrays do not overlap and need no alignment beyond that of float. They
// must stay valid during the call.
struct RowUpdate {
  float* weights;                     // [dim]
  float* state;                       // [state_floats(dim)]; ignored if that is 0
  const float* gradient;              // [dim], finite
  float learning_rate_factor = 1.0f;  // multiplied by the factor that Update is given
};

// An optimizer with its settings. Immutable and thread-safe, but rows are not: a row must not be in two
// concurrent calls, and not twice in one call.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Returns the name of the kind, such as "adagrad".
  virtual absl::string_view kind() const = 0;
  // Returns the number of floats of state that a row of `dim` weights needs. Requires dim >= 1.
  virtual size_t state_floats(size_t dim) const = 0;
  // Writes the state of a new row, which holds its initial weights. `state` has state_floats(dim) elements.
  virtual void InitState(const float* weights, float* state, size_t dim) const = 0;
  // Does one optimizer step on each row, with the rate learning_rate * learning_rate_factor *
  // row.learning_rate_factor. `learning_rate_factor` is that of a schedule, or 1. `batch_share`, in (0, 1],
  // is the share of a global batch that the gradients carry. It multiplies l2 and weight_decay (not the l2 of
  // ftrl), so that the updates of one global batch regularize a row as much as one update with a share of 1.
  // Passing many rows in one call is faster, because the instruction set is chosen once a call.
  virtual void Update(absl::Span<const RowUpdate> rows, size_t dim, float learning_rate_factor,
                      float batch_share = 1.0f) const = 0;
  // Returns the factor of the learning rate that warm-up gives to update number `update` of a table, counted
  // from 1. The caller multiplies it into Update's factor. 1 without a warm-up.
  virtual float WarmUp(uint64_t update) const { return 1.0f; }
};

// Returns the optimizer that `config` describes, or InvalidArgument naming the field, its value and what is
// allowed. An unknown kind is answered with the closest name and all kinds. Fields that the kind does not
// have are ignored.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::OptimizerConfig& config);

// Returns the kinds that MakeOptimizer knows.
absl::Span<const absl::string_view> OptimizerKinds();

}  // namespace tandem::ps

#endif  // TANDEM_PS_OPTIMIZERS_OPTIMIZER_H_
