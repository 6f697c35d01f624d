// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_DENSE_OPTIMIZER_H_
#define TANDEM_WORKER_NN_DENSE_OPTIMIZER_H_

// Optimizers of a model's dense parameters. Every worker applies the same one to the same all-reduced
// gradient, so the workers' copies of the parameters stay equal bit by bit. The formulas are those of
// torch.optim; the names of its two kinds of decay are not.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/parameter_block.h"

namespace tandem::worker {

struct DenseOptimizerOptions {
  std::string kind = "adam";         // a kind of DenseOptimizers() (worker/nn/registry.h)
  float momentum = 0.9f;             // momentum
  float beta1 = 0.9f;                // adam, adamw
  float beta2 = 0.999f;              // adam, adamw
  float epsilon = 1e-8f;             // adagrad, adam, adamw: added to the square root; adam, adamw: > 0
  float initial_accumulator = 0.0f;  // adagrad
  // Coupled: l2 * parameter is added to the gradient, as torch.optim's `weight_decay` is, except for AdamW.
  // Decoupled: the parameter first loses lr * weight_decay of itself, whatever its gradient (Loshchilov and
  // Hutter, ICLR 2019). Both apply only to blocks with `decay`. Tables give the two names the same meanings.
  float l2 = 0.0f;
  float weight_decay = 0.0f;
};

// The formula of a kind; dense_optimizer.cc defines the values.
enum class DenseOptimizerRule;

// Everything that Step changes, except for the parameters.
struct DenseOptimizerState {
  uint64_t steps = 0;
  // [slots_per_parameter x number of parameters]. The slots are none (sgd), the momentum, the accumulator
  // (adagrad), or the first and second moment (adam, adamw).
  std::vector<float> slots;
};

// An optimizer with its state. Not thread-safe.
class DenseOptimizer {
 public:
  // Returns an optimizer of the parameters that `blocks` describe (Model::blocks()); they cover a flat array
  // without gaps. InvalidArgument names the field, its value and what is allowed, or lists the kinds.
  static absl::StatusOr<std::unique_ptr<DenseOptimizer>> Create(const DenseOptimizerOptions& options,
                                                                const std::vector<ParameterBlock>& blocks);

  // Does one step at `learning_rate` and changes `parameters`. Both spans have the size of the flat array.
  void Step(float learning_rate, absl::Span<const float> gradients, absl::Span<float> parameters);

  uint64_t steps() const { return state_.steps; }
  // Return and set the state, for checkpoints. Restore returns InvalidArgument and changes nothing if the
  // state has another size, because it was saved for another model or optimizer.
  const DenseOptimizerState& state() const { return state_; }
  absl::Status Restore(DenseOptimizerState state);

 private:
  // Consecutive parameters that all have weight decay, or all do not.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    bool decay = false;
  };

  DenseOptimizer(DenseOptimizerRule rule, const DenseOptimizerOptions& options,
                 const std::vector<ParameterBlock>& blocks);

  const DenseOptimizerRule rule_;
  const DenseOptimizerOptions options_;
  size_t size_ = 0;
  std::vector<Range> ranges_;
  DenseOptimizerState state_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_DENSE_OPTIMIZER_H_
