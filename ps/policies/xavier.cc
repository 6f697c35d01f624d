#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/initializer_kinds.h"

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

InitializerOr MakeXavier(const v1::InitializerConfig& config) {
  if (!std::isfinite(config.gain()) || config.gain() <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer.gain is ", config.gain(), "; it must be finite and > 0 (1 is usual)"));
  }
  return std::make_unique<XavierInitializer>(config.gain());
}

}  // namespace tandem::ps
