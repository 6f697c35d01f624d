#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

// A normal distribution without its tails: what falls more than two standard deviations from the mean (4.6%)
// is drawn again. What is left has .88 of the standard deviation.
class TruncatedNormalInitializer : public Initializer {
 public:
  TruncatedNormalInitializer(float mean, float stddev) : mean_(mean), stddev_(stddev) {}
  absl::string_view kind() const override { return "truncated_normal"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    CounterRandom random(seed, id);
    for (size_t i = 0; i < dim; ++i) {
      double value = random.Normal();
      while (std::abs(value) > 2.0) value = random.Normal();
      row[i] = static_cast<float>(mean_ + stddev_ * value);
    }
  }

 private:
  const double mean_;
  const double stddev_;
};

}  // namespace

InitializerOr MakeTruncatedNormal(const v1::InitializerConfig& config) {
  if (!std::isfinite(config.mean()) || !std::isfinite(config.stddev()) || config.stddev() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("initializer.mean, stddev are ", config.mean(), ", ",
                                                   config.stddev(), "; they must be finite and stddev >= 0"));
  }
  return std::make_unique<TruncatedNormalInitializer>(config.mean(), config.stddev());
}

}  // namespace tandem::ps
