#ifndef TANDEM_PS_POLICIES_ADMISSION_KINDS_H_
#define TANDEM_PS_POLICIES_ADMISSION_KINDS_H_

// The makers behind MakeAdmission, one per file of this folder.

#include <memory>

#include "absl/status/statusor.h"
#include "ps/policies/admission.h"

namespace tandem::ps {

using AdmissionOr = absl::StatusOr<std::unique_ptr<Admission>>;

AdmissionOr MakeAlways(const v1::AdmissionConfig& config);
AdmissionOr MakeProbability(const v1::AdmissionConfig& config);
AdmissionOr MakeCount(const v1::AdmissionConfig& config);

}  // namespace tandem::ps

#endif  // TANDEM_PS_POLICIES_ADMISSION_KINDS_H_
