// SPDX-License-Identifier: Apache-2.0
// Factorization machine: logistic regression plus the dot products of all pairs of an example's rows.

#include <algorithm>

#include "worker/models/dense_model.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/registry.h"
#include "worker/models/wide.h"

namespace tandem::worker {
namespace {

class Fm final : public DenseModel {
 public:
  explicit Fm(const ModelOptions& options)
      : DenseModel(options), wide_(options, /*has_bias=*/true, &parameters_), pairs_(num_sparse(), dim()) {}

  bool NeedsSquareSums() const override { return true; }
  bool NeedsWide() const override { return true; }

  void Forward(const ModelInput& input, bool training, uint64_t step, absl::Span<float> logits) override {
    std::fill(logits.begin(), logits.end(), 0.0f);
    wide_.Forward(input, logits);
    pairs_.Forward(input, logits);
  }

  void BackwardInputs(const ModelInput& input, absl::Span<const float> d_logits,
                      const InputGradients& d_input) override {
    wide_.BackwardInputs(d_logits, d_input.wide);
    pairs_.Backward(input, d_logits, d_input);
  }

  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                          GradientsReady ready) override {
    wide_.BackwardParameters(input, d_logits, ready);
  }

 private:
  Wide wide_;
  FactorizationMachine pairs_;
};

}  // namespace

ModelKind FmKind() {
  return {.name = "fm",
          .summary = "factorization machine: logistic regression and the dot products of all pairs of rows",
          .reference = "Rendle, ICDM 2010",
          .build = [](const ModelOptions& options) -> absl::StatusOr<std::unique_ptr<Model>> {
            if (options.num_sparse == 0) {
              return absl::InvalidArgumentError(
                  "model.kind fm pairs up sparse features, and the data has none; use lr");
            }
            return std::make_unique<Fm>(options);
          }};
}

}  // namespace tandem::worker
