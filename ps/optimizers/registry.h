// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_OPTIMIZERS_REGISTRY_H_
#define TANDEM_PS_OPTIMIZERS_REGISTRY_H_

// The descriptions of the optimizers. To add one, write its source file with a function that returns its
// OptimizerKind, and list that function in optimizer.cc.

#include <memory>
#include <vector>

#include "base/config_field.h"
#include "base/kind_registry.h"
#include "ps/optimizers/optimizer.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

using OptimizerField = ConfigField<v1::OptimizerConfig>;
// `build` makes the optimizer of a checked configuration, without modifiers.
using OptimizerKind =
    ConfigKind<v1::OptimizerConfig, std::unique_ptr<Optimizer> (*)(const v1::OptimizerConfig& config)>;
using OptimizerRegistry = KindRegistry<v1::OptimizerConfig, decltype(OptimizerKind::build)>;

// Returns the registry of all optimizers. Every kind also has the fields of its modifiers.
const OptimizerRegistry& Optimizers();

// Fields that several kinds have.
OptimizerField LearningRate(double default_value);
OptimizerField Beta1(double default_value);
OptimizerField Beta2(double default_value);
OptimizerField Epsilon(double default_value);
OptimizerField InitialAccumulator(double default_value, Range range);
// Decoupled weight decay, which is a modifier. ftrl does not have it.
OptimizerField WeightDecay(double default_value);
// Adds l2 * weight to the gradient. Every kind has it; in a job file it belongs to the table and not to the
// optimizer, unless the kind lists it among its fields (ftrl).
OptimizerField L2();

// The fields of the modifiers that every kind has: clipping and warm-up.
std::vector<OptimizerField> ModifierFields();
// Returns `base` with the weight decay, clipping and warm-up of `config`, or `base` itself if there are none.
// `config` has been checked.
std::unique_ptr<Optimizer> AddModifiers(const v1::OptimizerConfig& config, std::unique_ptr<Optimizer> base);

}  // namespace tandem::ps

#endif  // TANDEM_PS_OPTIMIZERS_REGISTRY_H_
