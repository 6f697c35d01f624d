// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ENVS_REGISTRY_H_
#define TANDEM_WORKER_RL_ENVS_REGISTRY_H_

// The descriptions of the environments. To add one, write a file with a function that returns its
// description, and extend the list in environment.cc.

#include <memory>

#include "base/config_field.h"
#include "base/kind_registry.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

using EnvironmentKind =
    ConfigKind<EnvironmentOptions, std::unique_ptr<Environment> (*)(const EnvironmentOptions&)>;
using EnvironmentRegistry =
    KindRegistry<EnvironmentOptions, std::unique_ptr<Environment> (*)(const EnvironmentOptions&)>;
const EnvironmentRegistry& Environments();

// The field `max_steps` with a default value.
ConfigField<EnvironmentOptions> MaxSteps(double default_value);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ENVS_REGISTRY_H_
