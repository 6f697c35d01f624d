#ifndef TANDEM_WORKER_NN_DENSE_OPTIMIZER_H_
#define TANDEM_WORKER_NN_DENSE_OPTIMIZER_H_

// The optimizer of a model's dense parameters. Every worker applies it to the same all-reduced gradient, so
// that the copies of the parameters stay equal bit by bit. Formulas are those of torch.optim.

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
  std::string kind = "adam";         // sgd, momentum, adagrad, adam, adamw
  float momentum = 0.9f;             // momentum
  float beta1 = 0.9f;                // adam, adamw
  float beta2 = 0.999f;              // adam, adamw
  float epsilon = 1e-8f;             // adagrad, adam, adamw: added to the square root
  float initial_accumulator = 0.0f;  // adagrad
  // L2: added to the gradient as weight_decay * parameter; adamw instead shrinks the parameter by lr *
  // weight_decay (Loshchilov and Hutter, ICLR 2019). Only in blocks with `decay`.
  float weight_decay = 0.0f;
};

// The formula of a kind; dense_optimizer.cc defines the values.
enum class DenseOptimizerRule;

// Everything that Step changes besides the parameters.
struct DenseOptimizerState {
  uint64_t steps = 0;
  std::vector<float>
      slots;  // [slots_per_parameter x number of parameters]: momentum; accumulator; or first, second moment
};

// Not thread-safe.
class DenseOptimizer {
 public:
  // For the parameters that `blocks` describe (Model::blocks()), which cover a flat array without gaps.
  // InvalidArgument names the field, or the kind with those there are.
  static absl::StatusOr<std::unique_ptr<DenseOptimizer>> Create(const DenseOptimizerOptions& options,
                                                                const std::vector<ParameterBlock>& blocks);

  // One step at `learning_rate`; changes `parameters`. Both spans have the size of the flat array.
  void Step(float learning_rate, absl::Span<const float> gradients, absl::Span<float> parameters);

  uint64_t steps() const { return state_.steps; }
  // For checkpoints. Restore refuses, with InvalidArgument and nothing changed, a state of another size.
  const DenseOptimizerState& state() const { return state_; }
  absl::Status Restore(DenseOptimizerState state);

 private:
  // A run of parameters with one weight decay.
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
