// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

class ZerosInitializer : public Initializer {
 public:
  absl::string_view kind() const override { return "zeros"; }
  void Fill(uint64_t seed, uint64_t id, float* row, size_t dim) const override {
    std::fill_n(row, dim, 0.0f);
  }
};

}  // namespace

InitializerKind ZerosKind() {
  return {.name = "zeros",
          .summary = "every element is 0",
          .build = [](const v1::InitializerConfig& config) -> std::unique_ptr<Initializer> {
            return std::make_unique<ZerosInitializer>();
          }};
}

}  // namespace tandem::ps
