#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

class NormalInitializer : public Initializer {
 public:
  NormalInitializer(float mean, float stddev) : mean_(mean), stddev_(stddev) {}
  absl::string_view kind() const override { return "normal"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    CounterRandom random(seed, id);
    for (size_t i = 0; i < dim; ++i) row[i] = static_cast<float>(mean_ + stddev_ * random.Normal());
  }

 private:
  const double mean_;
  const double stddev_;
};

}  // namespace

InitializerOr MakeNormal(const v1::InitializerConfig& config) {
  if (!std::isfinite(config.mean()) || !std::isfinite(config.stddev()) || config.stddev() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("initializer.mean, stddev are ", config.mean(), ", ",
                                                   config.stddev(), "; they must be finite and stddev >= 0"));
  }
  return std::make_unique<NormalInitializer>(config.mean(), config.stddev());
}

}  // namespace tandem::ps
