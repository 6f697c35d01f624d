// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

class UniformInitializer : public Initializer {
 public:
  UniformInitializer(float low, float high)
      : low_(low), width_(high - low), below_high_(low < high ? std::nextafter(high, low) : high) {}
  absl::string_view kind() const override { return "uniform"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    CounterRandom random(seed, id);
    // low + width * u may round up to `high`, which is not in [low, high).
    for (size_t i = 0; i < dim; ++i) row[i] = std::min(low_ + width_ * random.Uniform(), below_high_);
  }

 private:
  const float low_;
  const float width_;
  const float below_high_;
};

}  // namespace

InitializerKind UniformKind() {
  using Config = v1::InitializerConfig;
  return {.name = "uniform",
          .summary = "uniform in [`low`, `high`)",
          .fields =
              {MessageField<&Config::low, &Config::set_low>(
                   {.name = "low", .help = "least value", .default_value = -0.01}),
               MessageField<&Config::high, &Config::set_high>(
                   {.name = "high", .help = "end of the range; not less than `low`", .default_value = 0.01})},
          .check = [](const Config& config) -> std::optional<FieldConflict> {
            // A finite difference also rules out ends so far apart that their distance overflows.
            if (std::isfinite(config.high() - config.low()) && config.low() <= config.high())
              return std::nullopt;
            return FieldConflict{.field = "high",
                                 .job_message = config.low() <= config.high()
                                                    ? absl::StrCat("is too far from 'low', ", config.low())
                                                    : absl::StrCat("must be at least 'low', ", config.low()),
                                 .message = absl::StrCat("low, high are ", config.low(), ", ", config.high(),
                                                         "; they must be finite and low <= high")};
          },
          .build = [](const v1::InitializerConfig& config) -> std::unique_ptr<Initializer> {
            return std::make_unique<UniformInitializer>(config.low(), config.high());
          }};
}

}  // namespace tandem::ps
