// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"
#include "ps/policies/registry.h"

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

InitializerKind NormalKind() {
  return {.name = "normal",
          .summary = "normal with `mean` and `stddev`",
          .fields = {MeanField(), StddevField()},
          .check = CheckNormal,
          .build = [](const v1::InitializerConfig& config) -> std::unique_ptr<Initializer> {
            return std::make_unique<NormalInitializer>(config.mean(), config.stddev());
          }};
}

}  // namespace tandem::ps
