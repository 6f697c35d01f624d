// SPDX-License-Identifier: Apache-2.0
#include "ps/optimizers/optimizer.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ps/optimizers/registry.h"

namespace tandem::ps {

// Each is defined in the source file of its kind.
OptimizerKind SgdKind();
OptimizerKind MomentumKind();
OptimizerKind AdagradKind();
OptimizerKind RowwiseAdagradKind();
OptimizerKind AdamKind();
OptimizerKind AdamWKind();
OptimizerKind AmsGradKind();
OptimizerKind FtrlKind();

const OptimizerRegistry& Optimizers() {
  static const auto* const registry = [] {
    std::vector<OptimizerKind> kinds = {SgdKind(),  MomentumKind(), AdagradKind(), RowwiseAdagradKind(),
                                        AdamKind(), AdamWKind(),    AmsGradKind(), FtrlKind()};
    for (OptimizerKind& kind : kinds) {
      for (const OptimizerField& field : ModifierFields()) kind.fields.push_back(field);
    }
    return new OptimizerRegistry("optimizer", std::move(kinds));
  }();
  return *registry;
}

OptimizerField LearningRate(double default_value) {
  return MessageField<&v1::OptimizerConfig::learning_rate, &v1::OptimizerConfig::set_learning_rate>(
      {.name = "lr",
       .error_name = "learning_rate",
       .help = "learning rate",
       .range = Above(0),
       .default_value = default_value});
}

OptimizerField Beta1(double default_value) {
  return MessageField<&v1::OptimizerConfig::beta1, &v1::OptimizerConfig::set_beta1>(
      {.name = "beta1",
       .help = "decay of the average of gradients",
       .range = Fraction(),
       .default_value = default_value,
       .usual = true});
}

OptimizerField Beta2(double default_value) {
  return MessageField<&v1::OptimizerConfig::beta2, &v1::OptimizerConfig::set_beta2>(
      {.name = "beta2",
       .help = "decay of the average of squared gradients",
       .range = Fraction(),
       .default_value = default_value,
       .usual = true});
}

OptimizerField Epsilon(double default_value) {
  return MessageField<&v1::OptimizerConfig::epsilon, &v1::OptimizerConfig::set_epsilon>(
      {.name = "epsilon",
       .help = "added to the square root that divides the step",
       .range = Above(0),
       .default_value = default_value,
       .usual = true});
}

OptimizerField InitialAccumulator(double default_value, Range range) {
  return MessageField<&v1::OptimizerConfig::initial_accumulator,
                      &v1::OptimizerConfig::set_initial_accumulator>(
      {.name = "initial_accumulator",
       .help = "sum of squared gradients that a new row starts with",
       .range = range,
       .default_value = default_value,
       .usual = true});
}

OptimizerField L2() {
  return MessageField<&v1::OptimizerConfig::l2, &v1::OptimizerConfig::set_l2>(
      {.name = "l2",
       .help = "coupled: l2 * row is added to the row's gradient whenever the row is updated",
       .range = AtLeast(0),
       .default_value = 0});
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::OptimizerConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const OptimizerKind* const kind, Optimizers().Get(config.kind()));
  TANDEM_RETURN_IF_ERROR(ValidateField("optimizer", L2().info, config.l2()));
  TANDEM_RETURN_IF_ERROR(Optimizers().Validate(*kind, config));
  return AddModifiers(config, kind->build(config));
}

absl::Span<const absl::string_view> OptimizerKinds() { return Optimizers().names(); }

}  // namespace tandem::ps
