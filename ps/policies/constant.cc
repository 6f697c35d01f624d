#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ps/policies/initializer_kinds.h"

namespace tandem::ps {
namespace {

class ConstantInitializer : public Initializer {
 public:
  explicit ConstantInitializer(float value) : value_(value) {}
  absl::string_view kind() const override { return "constant"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    std::fill_n(row, dim, value_);
  }

 private:
  const float value_;
};

}  // namespace

InitializerOr MakeConstant(const v1::InitializerConfig& config) {
  if (!std::isfinite(config.value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("initializer.value is ", config.value(), "; it must be finite"));
  }
  return std::make_unique<ConstantInitializer>(config.value());
}

}  // namespace tandem::ps
