// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"
#include "ps/policies/registry.h"

namespace tandem::ps {
namespace {

// Admits an id with probability p at each update that pushes it; after k of them it has a row with
// probability 1 - (1 - p)^k.
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

AdmissionKind ProbabilityKind() {
  return {.name = "probability",
          .summary = "each push of an id without a row admits it with the given probability",
          .fields = {MessageField<&v1::AdmissionConfig::probability, &v1::AdmissionConfig::set_probability>(
              {.name = "probability",
               .help = "chance of a push to admit the id",
               .range = {.min = 0, .max = 1, .above_min = true},
               .default_value = 0.1})},
          .build = [](const v1::AdmissionConfig& config) -> std::unique_ptr<Admission> {
            return std::make_unique<Probability>(config.probability());
          }};
}

}  // namespace tandem::ps
