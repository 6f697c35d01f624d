// SPDX-License-Identifier: Apache-2.0
// Logistic regression: logit = bias + sum of the wide rows + w . dense. It is convex and the baseline of
// every other kind.

#include <algorithm>

#include "worker/models/dense_model.h"
#include "worker/models/registry.h"
#include "worker/models/wide.h"

namespace tandem::worker {
namespace {

class Lr final : public DenseModel {
 public:
  explicit Lr(const ModelOptions& options)
      : DenseModel(options), wide_(options, /*has_bias=*/true, &parameters_) {}

  bool NeedsEmbeddings() const override { return false; }
  bool NeedsWide() const override { return num_sparse() > 0; }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    std::fill(logits.begin(), logits.end(), 0.0f);
    wide_.Forward(input, logits);
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    wide_.BackwardInputs(d_logits, d_input.wide);
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    wide_.BackwardParameters(input, d_logits, ready);
  }

 private:
  Wide wide_;
};

}  // namespace

ModelKind LrKind() {
  return {.name = "lr",
          .summary = "logistic regression",
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            return std::make_unique<Lr>(options);
          }};
}

}  // namespace tandem::worker
