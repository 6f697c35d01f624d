#include "ps/policies/admission.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/suggest.h"
#include "ps/policies/admission_kinds.h"

namespace tandem::ps {
namespace {

struct Entry {
  absl::string_view kind;
  AdmissionOr (*make)(const v1::AdmissionConfig&);
};

constexpr std::array<Entry, 3> kEntries = {{
    {"always", MakeAlways},
    {"probability", MakeProbability},
    {"count", MakeCount},
}};

constexpr std::array<absl::string_view, kEntries.size()> kKinds = [] {
  std::array<absl::string_view, kEntries.size()> kinds;
  for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = kEntries[i].kind;
  return kinds;
}();

}  // namespace

AdmissionOr MakeAdmission(const v1::AdmissionConfig& config) {
  const absl::string_view kind = config.kind().empty() ? "always" : absl::string_view(config.kind());
  for (const Entry& entry : kEntries) {
    if (entry.kind == kind) return entry.make(config);
  }
  return absl::InvalidArgumentError(absl::StrCat("admission.kind is '", config.kind(), "', which is unknown",
                                                 DidYouMean(config.kind(), kKinds)));
}

absl::Span<const absl::string_view> AdmissionKinds() { return kKinds; }

}  // namespace tandem::ps
