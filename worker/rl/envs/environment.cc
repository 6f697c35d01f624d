// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/envs/environment.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {

EnvironmentKind CartPoleKind();
EnvironmentKind AcrobotKind();
EnvironmentKind PendulumKind();
EnvironmentKind CatchKind();
EnvironmentKind BricksKind();
EnvironmentKind BanditKind();
EnvironmentKind ChainKind();

const EnvironmentRegistry& Environments() {
  static const auto* const registry = new EnvironmentRegistry(
      "env",
      {CartPoleKind(), AcrobotKind(), PendulumKind(), CatchKind(), BricksKind(), BanditKind(), ChainKind()});
  return *registry;
}

ConfigField<EnvironmentOptions> MaxSteps(double default_value) {
  return MemberField<&EnvironmentOptions::max_steps>(
      {.name = "max_steps",
       .help = "an episode is cut off (truncated) after this many steps; 0: never",
       .range = Between(0, 1 << 30),
       .default_value = default_value});
}

absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const EnvironmentOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const EnvironmentKind* const kind, Environments().Get(options.kind));
  TANDEM_RETURN_IF_ERROR(Environments().Validate(*kind, options));
  return kind->build(options);
}

absl::Status CheckStateSize(absl::Span<const double> state, size_t size) {
  if (state.size() == size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the state has ", state.size(), " numbers; this environment's has ", size));
}

}  // namespace tandem::rl
