// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/random.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

// Glorot and Bengio, AISTATS 2010, for a layer with one input (the id, as a one-hot vector) and dim outputs.
class XavierInitializer : public Initializer {
 public:
  explicit XavierInitializer(float gain) : gain_(gain) {}
  absl::string_view kind() const override { return "xavier"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    const float bound = static_cast<float>(gain_ * std::sqrt(6.0 / (1.0 + static_cast<double>(dim))));
    CounterRandom random(seed, id);
    for (size_t i = 0; i < dim; ++i) row[i] = bound * (2.0f * random.Uniform() - 1.0f);
  }

 private:
  const double gain_;
};

}  // namespace

InitializerKind XavierKind() {
  return {.name = "xavier",
          .summary = "uniform in +-`gain` * sqrt(6 / (1 + dim))",
          .reference = "Glorot and Bengio, AISTATS 2010",
          .fields = {MessageField<&v1::InitializerConfig::gain, &v1::InitializerConfig::set_gain>(
              {.name = "gain",
               .help = "factor of the bound",
               .range = Above(0),
               .default_value = 1,
               .usual = true})},
          .build = [](const v1::InitializerConfig& config) -> std::unique_ptr<Initializer> {
            return std::make_unique<XavierInitializer>(config.gain());
          }};
}

}  // namespace tandem::ps
