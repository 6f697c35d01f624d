// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/initializer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/policies/registry.h"

namespace tandem::ps {

// Each is defined in the source file of its kind.
InitializerKind ZerosKind();
InitializerKind ConstantKind();
InitializerKind UniformKind();
InitializerKind NormalKind();
InitializerKind TruncatedNormalKind();
InitializerKind XavierKind();

const InitializerRegistry& Initializers() {
  static const auto* const registry = new InitializerRegistry(
      "initializer",
      {ZerosKind(), ConstantKind(), UniformKind(), NormalKind(), TruncatedNormalKind(), XavierKind()});
  return *registry;
}

ConfigField<v1::InitializerConfig> MeanField() {
  return MessageField<&v1::InitializerConfig::mean, &v1::InitializerConfig::set_mean>(
      {.name = "mean", .help = "mean", .default_value = 0});
}

ConfigField<v1::InitializerConfig> StddevField() {
  return MessageField<&v1::InitializerConfig::stddev, &v1::InitializerConfig::set_stddev>(
      {.name = "stddev", .help = "standard deviation", .range = AtLeast(0), .default_value = 0.01});
}

std::optional<FieldConflict> CheckNormal(const v1::InitializerConfig& config) {
  if (std::isfinite(config.mean()) && std::isfinite(config.stddev()) && config.stddev() >= 0) {
    return std::nullopt;
  }
  return FieldConflict{.field = "stddev",
                       .job_message = "must be finite and at least 0",
                       .message = absl::StrCat("mean, stddev are ", config.mean(), ", ", config.stddev(),
                                               "; they must be finite and stddev >= 0")};
}

absl::StatusOr<std::unique_ptr<Initializer>> MakeInitializer(const v1::InitializerConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const InitializerKind* const kind, Initializers().Get(config.kind()));
  TANDEM_RETURN_IF_ERROR(Initializers().Validate(*kind, config));
  return kind->build(config);
}

absl::Span<const absl::string_view> InitializerKinds() { return Initializers().names(); }

}  // namespace tandem::ps
