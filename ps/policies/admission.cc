// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/admission.h"

#include "base/status.h"
#include "ps/policies/registry.h"

namespace tandem::ps {

// Each is defined in the source file of its kind.
AdmissionKind AlwaysKind();
AdmissionKind ProbabilityKind();
AdmissionKind CountKind();

const AdmissionRegistry& Admissions() {
  static const auto* const registry =
      new AdmissionRegistry("admission", {AlwaysKind(), ProbabilityKind(), CountKind()});
  return *registry;
}

absl::StatusOr<std::unique_ptr<Admission>> MakeAdmission(const v1::AdmissionConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(
      const AdmissionKind* const kind,
      Admissions().Get(config.kind().empty() ? absl::string_view("always") : config.kind()));
  TANDEM_RETURN_IF_ERROR(Admissions().Validate(*kind, config));
  return kind->build(config);
}

absl::Span<const absl::string_view> AdmissionKinds() { return Admissions().names(); }

}  // namespace tandem::ps
