#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

class UniformInitializer : public Initializer {
 public:
  UniformInitializer(float low, float high)
      : low_(low), width_(high - low), below_high_(low < high ? std::nextafter(high, low) : high) {}
  absl::string_view kind() const override { return "uniform"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    CounterRandom random(seed, id);
    // low + width * u may round up to `high`, which [low, high) leaves out.
    for (size_t i = 0; i < dim; ++i) row[i] = std::min(low_ + width_ * random.Uniform(), below_high_);
  }

 private:
  const float low_;
  const float width_;
  const float below_high_;
};

}  // namespace

InitializerOr MakeUniform(const v1::InitializerConfig& config) {
  // A finite difference also rules out ends so far apart that their distance overflows.
  if (!std::isfinite(config.low()) || !std::isfinite(config.high()) ||
      !std::isfinite(config.high() - config.low()) || config.low() > config.high()) {
    return absl::InvalidArgumentError(absl::StrCat("initializer.low, high are ", config.low(), ", ",
                                                   config.high(), "; they must be finite and low <= high"));
  }
  return std::make_unique<UniformInitializer>(config.low(), config.high());
}

}  // namespace tandem::ps
