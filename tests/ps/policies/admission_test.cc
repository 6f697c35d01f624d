// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/admission.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<Admission> AdmissionOf(const v1::AdmissionConfig& config) {
  auto admission = MakeAdmission(config);
  TANDEM_EXPECT_OK(admission);
  return *std::move(admission);
}

struct AdmissionCase {
  std::string name;
  v1::AdmissionConfig config;
};
std::vector<AdmissionCase> AdmissionCases() {
  return {{"Always", AdmitAlways()},
          {"Probability", AdmitWithProbability(0.3f)},
          {"Count", AdmitAfter(3, 100000)},
          {"CountCrowded", AdmitAfter(5, 64)}};
}

// Tests what holds for every admission.
class AdmissionConformanceTest : public ::testing::TestWithParam<AdmissionCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AdmissionConformanceTest, ::testing::ValuesIn(AdmissionCases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AdmissionConformanceTest, TheSameStreamIsDecidedTheSameWay) {
  const std::unique_ptr<Admission> a = AdmissionOf(GetParam().config), b = AdmissionOf(GetParam().config);
  std::vector<uint8_t> counters_a(a->counter_bytes(4)), counters_b(b->counter_bytes(4));
  CounterRandom random(/*seed=*/1, 0);
  for (uint64_t update = 1; update < 20000; ++update) {
    const Candidate candidate{.seed = 9, .id = random.Below(3000), .update = update};
    ASSERT_EQ(a->Admit(candidate, absl::MakeSpan(counters_a)),
              b->Admit(candidate, absl::MakeSpan(counters_b)));
    if (update % 5000 == 0)
      counters_b = counters_a;  // as after a checkpoint: the counters are all its memory
  }
  EXPECT_EQ(counters_a, counters_b);
}

TEST_P(AdmissionConformanceTest, AnIdThatKeepsComingIsAdmitted) {
  const std::unique_ptr<Admission> admission = AdmissionOf(GetParam().config);
  std::vector<uint8_t> counters(admission->counter_bytes(1));
  for (uint64_t id = 0; id < 100; ++id) {
    bool admitted = false;
    for (uint64_t update = 1; update < 300 && !admitted; ++update) {
      admitted =
          admission->Admit({.seed = 1, .id = id, .update = id * 1000 + update}, absl::MakeSpan(counters));
    }
    EXPECT_TRUE(admitted) << id;
  }
}

TEST_P(AdmissionConformanceTest, SaysItsKindAndOnlyAlwaysMakesRowsAtPulls) {
  const std::unique_ptr<Admission> admission = AdmissionOf(GetParam().config);
  EXPECT_EQ(admission->kind(), GetParam().config.kind());
  EXPECT_EQ(admission->at_pull(), admission->kind() == "always");
}

TEST(AdmissionRegistryTest, AllKindsAreCoveredAndAnEmptyKindIsAlways) {
  for (const absl::string_view kind : AdmissionKinds()) {
    bool covered = false;
    for (const AdmissionCase& c : AdmissionCases()) covered = covered || c.config.kind() == kind;
    EXPECT_TRUE(covered) << kind;
  }
  EXPECT_EQ(AdmissionOf({})->kind(), "always");
}

TEST(AdmissionRegistryTest, WrongFieldsAreNamed) {
  v1::AdmissionConfig config;
  config.set_kind("cuont");
  EXPECT_THAT(MakeAdmission(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("admission.kind is 'cuont'"), HasSubstr("count"))));
  for (const float p : {0.0f, -1.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(MakeAdmission(AdmitWithProbability(p)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("admission.probability")));
  }
  for (const uint32_t threshold : {0u, 1u, 256u}) {
    EXPECT_THAT(MakeAdmission(AdmitAfter(threshold, 10)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("admission.threshold")));
  }
  EXPECT_THAT(MakeAdmission(AdmitAfter(2, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("admission.counters")));
}

TEST(ProbabilityTest, AdmitsThatShareOfIds) {
  const std::unique_ptr<Admission> admission = AdmissionOf(AdmitWithProbability(0.3f));
  int admitted = 0;
  for (uint64_t id = 0; id < 20000; ++id)
    admitted += admission->Admit({.seed = 1, .id = id, .update = 7}, {});
  EXPECT_NEAR(admitted / 20000.0, 0.3, 0.015);
}

TEST(CountTest, WithRoomItIsAnExactCount) {
  const std::unique_ptr<Admission> admission = AdmissionOf(AdmitAfter(4, 1 << 20));
  std::vector<uint8_t> counters(admission->counter_bytes(1));
  std::map<uint64_t, int> model;
  CounterRandom random(/*seed=*/2, 0);
  int wrong = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t id = random.Below(5000);
    wrong +=
        admission->Admit({.seed = 1, .id = id, .update = 1}, absl::MakeSpan(counters)) != (++model[id] >= 4);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(CountTest, NeverRefusesAnIdThatHasReachedTheThresholdBeforeAgeing) {
  const std::unique_ptr<Admission> admission = AdmissionOf(AdmitAfter(3, 5000));
  std::vector<uint8_t> counters(admission->counter_bytes(1));
  std::map<uint64_t, int> model;
  CounterRandom random(/*seed=*/3, 0);
  for (int i = 0; i < 6000; ++i) {  // crowded, but below the four additions a cell that age it
    const uint64_t id = random.Below(3000);
    const bool admitted = admission->Admit({.seed = 1, .id = id, .update = 1}, absl::MakeSpan(counters));
    if (++model[id] >= 3) {
      ASSERT_TRUE(admitted);
    }
  }
}

TEST(CountTest, OnceOnlyIdsFadeSoThatTheFilterNeverFillsUp) {
  const std::unique_ptr<Admission> admission = AdmissionOf(AdmitAfter(10, 1000));
  std::vector<uint8_t> counters(admission->counter_bytes(1));
  int admitted = 0;
  constexpr int kIds = 100000;
  for (uint64_t id = 0; id < kIds; ++id) {
    admitted += admission->Admit({.seed = 1, .id = id, .update = 1}, absl::MakeSpan(counters));
  }
  EXPECT_LT(admitted, kIds / 50);
}

}  // namespace
}  // namespace tandem::ps
