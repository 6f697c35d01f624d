// SPDX-License-Identifier: Apache-2.0
// A plain deep network: an MLP over [embeddings | dense] and nothing else (the ranking network of Covington
// et al., RecSys 2016; FuxiCTR calls it DNN).

#include "worker/models/dense_model.h"
#include "worker/models/registry.h"

namespace tandem::worker {
namespace {

class Dnn final : public DenseModel {
 public:
  explicit Dnn(const ModelOptions& options) : DenseModel(options), deep_(DeepOptions(), &parameters_) {}

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    deep_.Forward(TowerInput(input), input.batch, training, step, {logits.data(), 1, 1});
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    deep_.BackwardInputs(input.batch, {d_logits.data(), 1, 1}, 0.0f, TowerGradient(d_input));
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    deep_.BackwardParameters(TowerInput(input), input.batch, ready);
  }

 private:
  MlpOptions DeepOptions() const {
    MlpOptions mlp = TowerOptions("deep", embedding_width() + num_dense(), options_.hidden);
    mlp.output = 1;
    return mlp;
  }

  Mlp deep_;
};

}  // namespace

ModelKind DnnKind() {
  return {.name = "dnn",
          .summary = "an MLP over the embeddings and the dense features",
          .reference = "Covington, Adams and Sargin, RecSys 2016",
          .fields = MlpFields(),
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            return std::make_unique<Dnn>(options);
          }};
}

}  // namespace tandem::worker
