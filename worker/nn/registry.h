// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_REGISTRY_H_
#define TANDEM_WORKER_NN_REGISTRY_H_

// The descriptions of the optimizers of dense parameters and of the learning rate's schedules. To add one,
// extend the list in dense_optimizer.cc or lr_schedule.cc.

#include "base/config_field.h"
#include "base/kind_registry.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"

namespace tandem::worker {

using DenseOptimizerKind = ConfigKind<DenseOptimizerOptions, DenseOptimizerRule>;
using DenseOptimizerRegistry = KindRegistry<DenseOptimizerOptions, DenseOptimizerRule>;
const DenseOptimizerRegistry& DenseOptimizers();

using ScheduleKind = ConfigKind<LearningRateOptions, LearningRateRule>;
using ScheduleRegistry = KindRegistry<LearningRateOptions, LearningRateRule>;
const ScheduleRegistry& Schedules();
// The base learning rate, which every schedule has. A job file gives it as the optimizer's `lr`.
ConfigField<LearningRateOptions> BaseRateField();

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_REGISTRY_H_
