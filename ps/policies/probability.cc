#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ps/policies/admission_kinds.h"

namespace tandem::ps {
namespace {

// An id seen in k updates has a row with probability 1 - (1 - p)^k.
class Probability : public Admission {
 public:
  explicit Probability(float probability) : probability_(probability) {}
  absl::string_view kind() const override { return "probability"; }
  bool at_pull() const override { return false; }
  bool Admit(const Candidate& candidate, absl::Span<uint8_t>) const override {
    return CounterRandom(Mix64(candidate.seed, candidate.id), candidate.update).Uniform() < probability_;
  }

 private:
  const float probability_;
};

}  // namespace

AdmissionOr MakeProbability(const v1::AdmissionConfig& config) {
  if (!(config.probability() > 0 && config.probability() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("admission.probability is ", config.probability(), "; it must be in (0, 1]"));
  }
  return std::make_unique<Probability>(config.probability());
}

}  // namespace tandem::ps
