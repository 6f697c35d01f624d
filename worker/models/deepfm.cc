// SPDX-License-Identifier: Apache-2.0
// DeepFM: a factorization machine and an MLP over [embeddings | dense] that share the embeddings (Guo et al.,
// IJCAI 2017). The MLP has the bias.

#include "worker/models/dense_model.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/registry.h"
#include "worker/models/wide.h"

namespace tandem::worker {
namespace {

class DeepFm final : public DenseModel {
 public:
  explicit DeepFm(const ModelOptions& options)
      : DenseModel(options),
        wide_(options, /*has_bias=*/false, &parameters_),
        pairs_(num_sparse(), dim()),
        deep_(DeepOptions(), &parameters_) {}

  bool NeedsSquareSums() const override { return true; }
  bool NeedsWide() const override { return true; }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    deep_.Forward(TowerInput(input), input.batch, training, step, {logits.data(), 1, 1});
    wide_.Forward(input, logits);
    pairs_.Forward(input, logits);
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    pairs_.Backward(input, d_logits,
                    d_input);  // overwrites the embeddings' gradients, to which the MLP then adds
    deep_.BackwardInputs(input.batch, {d_logits.data(), 1, 1}, 1.0f, TowerGradient(d_input));
    wide_.BackwardInputs(d_logits, d_input.wide);
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    deep_.BackwardParameters(TowerInput(input), input.batch, ready);
    wide_.BackwardParameters(input, d_logits, ready);
  }

 private:
  MlpOptions DeepOptions() const {
    MlpOptions mlp = TowerOptions("deep", embedding_width() + num_dense(), options_.hidden);
    mlp.output = 1;
    return mlp;
  }

  Wide wide_;
  FactorizationMachine pairs_;
  Mlp deep_;
};

}  // namespace

ModelKind DeepFmKind() {
  return {.name = "deepfm",
          .summary = "factorization machine and an MLP over the same embeddings",
          .reference = "Guo et al., IJCAI 2017",
          .fields = MlpFields(),
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            if (options.num_sparse == 0) {
              return absl::InvalidArgumentError(
                  "model.kind deepfm pairs up sparse features, and the data has none; use wide_deep");
            }
            return std::make_unique<DeepFm>(options);
          }};
}

}  // namespace tandem::worker
