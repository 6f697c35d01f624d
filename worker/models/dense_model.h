#ifndef TANDEM_WORKER_MODELS_DENSE_MODEL_H_
#define TANDEM_WORKER_MODELS_DENSE_MODEL_H_

// What the models of this folder share, and how model.cc makes them. Private to the folder.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/nn/mlp.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

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

 protected:
  size_t num_dense() const { return options_.num_dense; }
  size_t num_sparse() const { return options_.num_sparse; }
  size_t dim() const { return options_.dim; }
  // Floats of an example's embeddings.
  size_t embedding_width() const { return num_sparse() * dim(); }

  // The input [embeddings | dense] of a tower and where its gradient goes: to the embeddings alone.
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
    return mlp;
  }

  const ModelOptions options_;
  Parameters parameters_;
};

// `options` have passed the checks of CreateModel that hold for every kind; these check what is their kind's
// own.
absl::StatusOr<std::unique_ptr<Model>> CreateLr(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> CreateFm(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> CreateWideDeep(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> CreateDeepFm(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> CreateDcn(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Model>> CreateDlrm(const ModelOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_DENSE_MODEL_H_
