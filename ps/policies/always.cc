#include "ps/policies/admission_kinds.h"

namespace tandem::ps {
namespace {

class Always : public Admission {
 public:
  absl::string_view kind() const override { return "always"; }
  bool at_pull() const override { return true; }
  bool Admit(const Candidate&, absl::Span<uint8_t>) const override { return true; }
};

}  // namespace

AdmissionOr MakeAlways(const v1::AdmissionConfig& config) { return std::make_unique<Always>(); }

}  // namespace tandem::ps
