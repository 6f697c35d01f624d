// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_MODEL_H_
#define TANDEM_WORKER_MODELS_MODEL_H_

// Click models compute one logit per example from looked-up embeddings and dense features, and the gradients
// of both. Embedding rows live on the parameter servers. A model owns only its dense parameters, one flat
// array that all workers all-reduce as a whole.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/parameter_block.h"
#include "worker/nn/sum_over_workers.h"

namespace tandem::worker {

// The most dense parameters that a model may have: a checkpoint cannot hold more.
inline constexpr int64_t kMostParameters = int64_t{1} << 29;

struct ModelOptions {
  std::string kind;    // one of ModelKinds()
  int num_dense = 0;   // numeric features, 0 to 100000
  int num_sparse = 0;  // categorical features, 0 to 100000; num_sparse * dim + num_dense <= 2^22
  int dim = 16;        // embedding dimension
  std::vector<int> hidden = {64, 32};  // widths of the MLP's hidden layers (DLRM: of the top MLP)
  std::vector<int> bottom = {64};      // DLRM: widths of the bottom MLP's hidden layers; its output has `dim`
  std::string interaction = "dot";     // DLRM: "dot" (products of all pairs) or "cat" (vectors side by side)
  int cross_layers = 3;                // DCN: number of cross layers
  std::string cross = "matrix";        // DCN: weight of a cross layer, "matrix" (DCN-v2) or "vector" (DCN)
  float dropout = 0.0f;                // after each hidden layer, in training only
  // Batch normalization of each hidden layer, between the product and the ReLU: "none", "local" (statistics
  // of the worker's batch) or "sync" (of the global batch).
  std::string batch_norm = "none";
  float batch_norm_momentum = 0.1f;  // weight of a new batch in the running averages, as in PyTorch
  float batch_norm_epsilon = 1e-5f;  // added to the variance
  uint64_t seed = 1;                 // of the initial parameters and of dropout
  // CreateModel refuses a model whose layers have more weights, before it allocates any. If the other options
  // come from a checkpoint, it is the number of parameters that the checkpoint has.
  int64_t max_parameters = kMostParameters;
};

// The inputs of a batch of B examples. The caller owns the arrays, which must stay valid during the call.
struct ModelInput {
  size_t batch = 0;              // B
  const float* dense = nullptr;  // [B x num_dense]
  // [B x num_sparse x dim], the embeddings pooled per feature; null unless NeedsEmbeddings().
  const float* embeddings = nullptr;
  // [B x dim], the sum over all ids i of (weight_i * row_i)^2; null unless NeedsSquareSums(). It may also be
  // null if no feature has more than one id, because the model then computes it from `embeddings`.
  const float* square_sums = nullptr;
  // [B x num_sparse], the rows of dimension 1 pooled per feature; null unless NeedsWide().
  const float* wide = nullptr;
};

// The arrays to which the model writes the gradients of the loss with respect to its inputs. They are
// overwritten, not added to. The caller owns them.
struct InputGradients {
  float* embeddings = nullptr;   // [B x num_sparse x dim]
  float* square_sums = nullptr;  // [B x dim]; null if that of the input is
  float* wide = nullptr;         // [B x num_sparse]
};

// A model with its dense parameters. Not thread-safe. Forward stores what the backward pass needs, and each
// training Forward is followed by one backward pass.
//
// The backward pass has two halves of about the same cost. BackwardInputs computes the gradients of the
// inputs, which the servers and, in SYNC mode, the next pull of every worker wait for. BackwardParameters
// then computes those of the parameters, which only the optimizer needs. Pipeline schedules split the
// backward pass in the same way (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024).
class Model {
 public:
  virtual ~Model() = default;
  virtual const std::string& kind() const = 0;
  // Return which inputs the model uses. NeedsSquareSums() is true for factorization machines.
  virtual bool NeedsEmbeddings() const = 0;
  virtual bool NeedsSquareSums() const = 0;
  virtual bool NeedsWide() const = 0;

  // Returns the parameters as one flat array, which the optimizer changes.
  virtual absl::Span<float> parameters() = 0;
  // Returns the gradients of parameters(), which each backward pass overwrites.
  virtual absl::Span<float> gradients() = 0;
  // Returns the names, shapes and places of the parameters in the flat array, which they cover without gaps.
  virtual const std::vector<ParameterBlock>& blocks() const = 0;

  // Returns the running averages of batch normalization, which training updates and evaluation uses. They
  // belong to checkpoints like the parameters, but have no gradients and differ between workers until they
  // are reduced (HybridTrainer::ReduceRunningAverages). Empty without batch normalization.
  virtual absl::Span<float> running_averages() = 0;
  // Returns the names, shapes and places of the running averages, which they cover without gaps.
  virtual const std::vector<ParameterBlock>& running_average_blocks() const = 0;
  // Sets the function that adds up batch statistics over all workers (`batch_norm` "sync"). It is called by
  // training Forward and by both halves of the backward pass. Null, the initial value: there is one worker.
  virtual void SetSumOverWorkers(SumOverWorkers sum) = 0;

  // Computes logits[b] for each example b. `training` switches dropout on, which `step` seeds, and makes
  // batch normalization use, and average, the statistics of this batch.
  virtual void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) = 0;
  // Computes the gradients of the inputs from d_logits, the gradient of the loss with respect to the logits.
  // `input` is that of the last Forward. `d_logits` must stay valid until BackwardParameters returns.
  virtual void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                              const InputGradients& d_input) = 0;
  // Computes the gradients of the parameters. Called after BackwardInputs, with the same input and d_logits.
  // Calls `ready(begin, end)` as soon as gradients()[begin, end) is final, last layers first, so that its
  // all-reduce can start while the rest is computed. The ranges are disjoint and cover all parameters.
  virtual void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                                  GradientsReady ready) = 0;
  // Does both halves of the backward pass.
  void Backward(const ModelInput& input, absl::Span<const float> d_logits, const InputGradients& d_input,
                GradientsReady ready) {
    BackwardInputs(input, d_logits, d_input);
    BackwardParameters(input, d_logits, ready);
  }
};

// Returns a model with new parameters, or InvalidArgument naming the field, its value and what is allowed. An
// unknown kind is answered with the closest name and all kinds.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelOptions& options);
// Returns the kinds that CreateModel knows.
std::vector<std::string> ModelKinds();

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_MODEL_H_
