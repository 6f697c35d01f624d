#ifndef TANDEM_WORKER_MODELS_MODEL_H_
#define TANDEM_WORKER_MODELS_MODEL_H_

// A click model: from looked-up embeddings and dense features to one logit per example, and back. Embedding
// rows live on the parameter servers; a model owns only its dense parameters, one flat array that is
// all-reduced as a whole.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/parameter_block.h"

namespace tandem::worker {

struct ModelOptions {
  std::string kind;  // lr, fm, wide_deep, deepfm, dcn, dlrm
  int num_dense = 0;
  int num_sparse = 0;
  int dim = 16;                        // embedding dimension
  std::vector<int> hidden = {64, 32};  // hidden layers of the MLP (DLRM: of the top MLP)
  std::vector<int> bottom = {64};      // DLRM: hidden layers of the bottom MLP, which ends in `dim`
  int cross_layers = 3;                // DCN-v2
  float dropout = 0.0f;                // after each hidden layer, training only
  uint64_t seed = 1;
};

// What the trainer looked up for a batch of B examples. Pointers are valid during the call.
struct ModelInput {
  size_t batch = 0;
  const float* dense = nullptr;  // [B x num_dense]
  const float* embeddings =
      nullptr;  // [B x num_sparse x dim], pooled per feature; null unless NeedsEmbeddings()
  // [B x dim], sum over all ids i of (weight_i * row_i)^2. Only if NeedsSquareSums(), and there it may be
  // null when no feature has more than one id: the embeddings then tell.
  const float* square_sums = nullptr;
  const float* wide = nullptr;  // [B x num_sparse], pooled 1-dim rows; null unless NeedsWide()
};
// Where the model writes gradients of the loss with respect to its inputs. Overwritten, not added to.
struct InputGradients {
  float* embeddings = nullptr;   // [B x num_sparse x dim]
  float* square_sums = nullptr;  // [B x dim]; null if the input's is
  float* wide = nullptr;         // [B x num_sparse]
};

// Not thread-safe. Forward keeps what the backward pass needs; one backward pass follows each training
// Forward.
//
// The backward pass has two halves, each half of its work: the gradients of the inputs, for which others wait
// (the servers, and in sync mode every worker's next pull), and then those of the parameters, which are
// wanted only by the optimizer. (Pipeline schedules split it likewise: Qi et al., Zero Bubble Pipeline
// Parallelism, ICLR 2024.)
class Model {
 public:
  virtual ~Model() = default;
  virtual const std::string& kind() const = 0;
  virtual bool NeedsEmbeddings() const = 0;
  virtual bool NeedsSquareSums() const = 0;  // FM over multi-valued features
  virtual bool NeedsWide() const = 0;

  virtual absl::Span<float> parameters() = 0;
  virtual absl::Span<float> gradients() = 0;  // of parameters(), overwritten by Backward
  virtual const std::vector<ParameterBlock>& blocks() const = 0;

  // logits[b] for each example. `training` switches dropout on; `step` seeds it.
  virtual void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) = 0;
  // From d loss / d logits, which stay until BackwardParameters; `input` is that of the last Forward.
  virtual void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                              const InputGradients& d_input) = 0;
  // After BackwardInputs, of the same input and d_logits. Calls `ready(begin, end)` as soon as
  // gradients()[begin, end) is final, the last layers first, so that its all-reduce can start while the rest
  // is computed; the ranges are disjoint and cover all.
  virtual void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                                  GradientsReady ready) = 0;
  // Both, for whoever does nothing in between.
  void Backward(const ModelInput& input, absl::Span<const float> d_logits, const InputGradients& d_input,
                GradientsReady ready) {
    BackwardInputs(input, d_logits, d_input);
    BackwardParameters(input, d_logits, ready);
  }
};

// InvalidArgument names the field, or the kind with those there are.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelOptions& options);
// The kinds CreateModel knows.
std::vector<std::string> ModelKinds();

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_MODEL_H_
