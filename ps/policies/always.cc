// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

class Always : public Admission {
 public:
  absl::string_view kind() const override { return "always"; }
  bool at_pull() const override { return true; }
  bool Admit(const Candidate&, absl::Span<uint8_t>) const override { return true; }
};

}  // namespace

AdmissionKind AlwaysKind() {
  return {.name = "always",
          .summary = "a training pull makes the row",
          .build = [](const v1::AdmissionConfig& config) -> std::unique_ptr<Admission> {
            return std::make_unique<Always>();
          }};
}

}  // namespace tandem::ps
