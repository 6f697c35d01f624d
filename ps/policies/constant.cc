// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ps/policies/registry.h"

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

InitializerKind ConstantKind() {
  return {.name = "constant",
          .summary = "every element is `value`",
          .fields = {MessageField<&v1::InitializerConfig::value, &v1::InitializerConfig::set_value>(
              {.name = "value", .help = "value of every element", .default_value = 0})},
          .build = [](const v1::InitializerConfig& config) -> std::unique_ptr<Initializer> {
            return std::make_unique<ConstantInitializer>(config.value());
          }};
}

}  // namespace tandem::ps
