// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_DENSE_MODEL_H_
#define TANDEM_WORKER_MODELS_DENSE_MODEL_H_

// The base class of the models of this folder. Private to the folder.

#include <string>
#include <utility>
#include <vector>

#include "worker/models/model.h"
#include "worker/nn/mlp.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// Owns options and dense parameters, and describes the inputs and gradients of MLPs over [embeddings |
// dense]. NeedsEmbeddings() holds if there are sparse features; derived classes override the other needs.
class DenseModel : public Model {
 public:
  explicit DenseModel(const ModelOptions& options) : options_(options), parameters_(options.seed) {}

  const std::string& kind() const override { return options_.kind; }
  bool NeedsEmbeddings() const override { return options_.num_sparse > 0; }
  bool NeedsSquareSums() const override { return false; }
  bool NeedsWide() const override { return false; }
  absl::Span<float> parameters() override { return parameters_.values(); }
  absl::Span<float> gradients() override { return parameters_.gradients(); }
  const std::vector<ParameterBlock>& blocks() const override { return parameters_.blocks(); }
  absl::Span<float> running_averages() override { return parameters_.running_averages(); }
  const std::vector<ParameterBlock>& running_average_blocks() const override {
    return parameters_.running_average_blocks();
  }
  void SetSumOverWorkers(SumOverWorkers sum) override { sum_over_workers_ = std::move(sum); }

 protected:
  size_t num_dense() const { return options_.num_dense; }
  size_t num_sparse() const { return options_.num_sparse; }
  size_t dim() const { return options_.dim; }
  // Number of floats in the embeddings of one example.
  size_t embedding_width() const { return num_sparse() * dim(); }

  // The input [embeddings | dense] of an MLP ("tower"), and the target of its input gradient. Only the
  // embeddings have one.
  std::vector<ConstMatrix> TowerInput(const ModelInput& input) const {
    return {{input.embeddings, embedding_width(), embedding_width()},
            {input.dense, num_dense(), num_dense()}};
  }
  std::vector<Matrix> TowerGradient(const InputGradients& d_input) const {
    if (num_sparse() == 0) return {};
    return {{d_input.embeddings, embedding_width(), embedding_width()}, {nullptr, num_dense(), num_dense()}};
  }
  MlpOptions TowerOptions(std::string name, size_t in, const std::vector<int>& hidden) const {
    MlpOptions mlp;
    mlp.name = std::move(name);
    mlp.in = static_cast<int>(in);
    mlp.hidden = hidden;
    mlp.dropout = options_.dropout;
    mlp.seed = options_.seed;
    mlp.batch_norm = options_.batch_norm != "none";
    mlp.norm = {.momentum = options_.batch_norm_momentum,
                .epsilon = options_.batch_norm_epsilon,
                .sum = options_.batch_norm == "sync" ? &sum_over_workers_ : nullptr};
    return mlp;
  }

  const ModelOptions options_;
  Parameters parameters_;
  SumOverWorkers sum_over_workers_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_DENSE_MODEL_H_
