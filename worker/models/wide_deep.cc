// SPDX-License-Identifier: Apache-2.0
// Wide & Deep: a linear part over wide rows and dense features, and an MLP over [embeddings | dense] (Cheng
// et al., DLRS 2016). The MLP has the bias. Without sparse features both parts read the dense features alone.

#include "worker/models/dense_model.h"
#include "worker/models/registry.h"
#include "worker/models/wide.h"

namespace tandem::worker {
namespace {

class WideDeep final : public DenseModel {
 public:
  explicit WideDeep(const ModelOptions& options)
      : DenseModel(options),
        wide_(options, /*has_bias=*/false, &parameters_),
        deep_(DeepOptions(), &parameters_) {}

  bool NeedsWide() const override { return num_sparse() > 0; }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    deep_.Forward(TowerInput(input), input.batch, training, step, {logits.data(), 1, 1});
    wide_.Forward(input, logits);
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    deep_.BackwardInputs(input.batch, {d_logits.data(), 1, 1}, 0.0f, TowerGradient(d_input));
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
  Mlp deep_;
};

}  // namespace

ModelKind WideDeepKind() {
  return {.name = "wide_deep",
          .summary = "Wide & Deep: a linear part and an MLP",
          .reference = "Cheng et al., DLRS 2016",
          .fields = MlpFields(),
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            return std::make_unique<WideDeep>(options);
          }};
}

}  // namespace tandem::worker
