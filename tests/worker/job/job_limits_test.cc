// SPDX-License-Identifier: Apache-2.0
// A job file accepts a value exactly if the layer that uses it does: no job fails after its data was read
// because of a value that its parser could have refused, and nothing that works is refused. Accepted jobs
// come back from their own text.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizers/registry.h"
#include "ps/policies/registry.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"
#include "worker/job/job_parser.h"
#include "worker/models/registry.h"
#include "worker/nn/registry.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<JobSpec> ParseWith(absl::string_view text) {
  return ParseJob(absl::StrCat("data: {train: a, format: libfm}\n", text), "x.yaml");
}

// Limits that occur, their neighbours, and numbers that only rounding to a float brings to a limit.
const std::vector<double> kCandidates = {
    -1e30, -2,     -1,         -0.5,   0,          1e-50,  0.5,        0.99999999999, 1,     1.5,
    2,     63,     64,         65,     255,        256,    4096,       4097,          65535, 65536,
    65537, 0x1p20, 0x1p20 + 1, 0x1p31, 0x1p31 + 1, 0x1p40, 0x1p40 + 1, 1e30,          1e300};

// Expects, of each field of each kind and each candidate value, that a job with `section` and the value
// parses exactly if `make` accepts the configuration. `config_of` returns the section's configuration in a
// job.
template <typename Registry, typename ConfigOf, typename Make>
void ExpectSameLimits(const Registry& registry, absl::string_view section, const ConfigOf& config_of,
                      const Make& make) {
  int accepted = 0, refused = 0;
  for (const auto& kind : registry.kinds()) {
    for (const auto& field : kind.fields) {
      bool comes_back = false;
      for (const double candidate : kCandidates) {
        auto config = registry.Default(kind.name);
        FieldValue value = field.get(config);
        const bool representable = std::visit(
            [&](auto& v) {
              using T = std::decay_t<decltype(v)>;
              if constexpr (std::is_same_v<T, std::vector<int>>) {
                v = {static_cast<int>(std::max(-1e9, std::min(1e9, candidate)))};
                return std::trunc(candidate) == candidate && std::abs(candidate) < 1e9;
              } else if constexpr (std::is_same_v<T, std::string>) {
                return false;  // a choice among texts has no limits
              } else {
                if (std::is_integral_v<T> && std::trunc(candidate) != candidate) return false;
                if (candidate < static_cast<double>(std::numeric_limits<T>::lowest())) return false;
                if (candidate > static_cast<double>(std::numeric_limits<T>::max())) return false;
                v = static_cast<T>(candidate);
                return std::is_floating_point_v<T> || std::abs(candidate) < 0x1p53;
              }
            },
            value);
        if (!representable) continue;
        const bool exact = !std::holds_alternative<float>(value) || std::get<float>(value) == candidate;
        const bool list = std::holds_alternative<std::vector<int>>(value);
        const std::string text =
            absl::StrCat(section, "{kind: ", kind.name, ", ", field.info.name, ": ", list ? "[" : "",
                         FormatValue(candidate), list ? "]" : "",
                         kind.name == std::string("lfu") ? ", byte_budget: 1048576}" : "}",
                         std::string(absl::c_count(section, '{'), '}'));
        const absl::StatusOr<JobSpec> job = ParseWith(text);
        if (job.ok()) {
          TANDEM_EXPECT_OK(make(config_of(*job))) << text;
          ++accepted;
          if (std::exchange(comes_back, true)) continue;  // once for each field is enough
          const std::string written = JobToYaml(*job);
          const absl::StatusOr<JobSpec> again = ParseJob(written, "written.yaml");
          TANDEM_ASSERT_OK(again) << written;
          EXPECT_EQ(JobToYaml(*again), written);
        } else if (exact) {  // otherwise rounding alone may make the value a good one
          field.set(config, value);
          EXPECT_FALSE(make(config).ok()) << text << ": " << job.status();
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

// The time of either would grow without limit, that of the fields with the square of their number.
TEST(JobLimitsTest, ManyFieldsAreReadAndLargeTextsRefused) {
  std::string many;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&many, "k", i, ": 1\n");
  EXPECT_THAT(ParseJob(many, "job.yaml").status().message(), ::testing::HasSubstr("unknown field 'k19999'"));
  const std::string large = absl::StrCat("name: ", std::string(10 << 20, 'x'), "\n");
  EXPECT_THAT(ParseJob(large, "job.yaml").status().message(),
              ::testing::HasSubstr("at most 262144 are read"));
}

TEST(JobLimitsTest, OptimizersOfTables) {
  ExpectSameLimits(
      ps::Optimizers(),
      "model: fm\nembedding: {optimizer: ", [](const JobSpec& job) { return job.embedding.optimizer; },
      [](const v1::OptimizerConfig& config) { return ps::MakeOptimizer(config).status(); });
}

TEST(JobLimitsTest, Initializers) {
  ExpectSameLimits(
      ps::Initializers(),
      "model: fm\nembedding: {initializer: ", [](const JobSpec& job) { return job.embedding.initializer; },
      [](const v1::InitializerConfig& config) { return ps::MakeInitializer(config).status(); });
}

TEST(JobLimitsTest, Admissions) {
  ExpectSameLimits(
      ps::Admissions(),
      "model: fm\nembedding: {admission: ", [](const JobSpec& job) { return job.embedding.admission; },
      [](const v1::AdmissionConfig& config) { return ps::MakeAdmission(config).status(); });
}

TEST(JobLimitsTest, Evictions) {
  ExpectSameLimits(
      ps::Evictions(),
      "model: fm\nembedding: {eviction: ", [](const JobSpec& job) { return job.embedding.eviction; },
      [](const v1::EvictionConfig& config) { return ps::MakeEviction(config).status(); });
}

TEST(JobLimitsTest, Models) {
  ExpectSameLimits(
      Models(), "model: ", [](const JobSpec& job) { return job.model; },
      // CreateModel checks the same, and would need gigabytes for the largest models.
      [](const ModelOptions& options) {
        return Models().ValidateAllFields(*Models().Find(options.kind), options);
      });
}

TEST(JobLimitsTest, OptimizersOfDenseParameters) {
  ExpectSameLimits(
      DenseOptimizers(), "model: fm\noptimizer: ", [](const JobSpec& job) { return job.optimizer; },
      [](const DenseOptimizerOptions& options) { return DenseOptimizer::Create(options, {}).status(); });
}

TEST(JobLimitsTest, Schedules) {
  const auto create = [](LearningRateOptions options) {
    // As a run does when the job leaves it open.
    if (options.total_steps == 0) options.total_steps = uint64_t{1} << 60;
    return LearningRateSchedule::Create(options).status();
  };
  ExpectSameLimits(
      Schedules(), "model: fm\noptimizer: {schedule: ", [](const JobSpec& job) { return job.schedule; },
      create);
}

TEST(JobLimitsTest, FieldsThatLimitEachOther) {
  const auto refusal = [](absl::string_view text) { return std::string(ParseWith(text).status().message()); };
  EXPECT_THAT(refusal("model: fm\noptimizer: {lr: 0.01, schedule: {kind: cosine, min_lr: 0.02}}"),
              HasSubstr("field 'min_lr' in 'optimizer.schedule' of kind 'cosine' must be at most 'lr'"));
  EXPECT_THAT(refusal("model: fm\noptimizer: {schedule: {kind: cosine, warmup_steps: 9, total_steps: 9}}"),
              HasSubstr("must be more than 'warmup_steps', 9"));
  TANDEM_EXPECT_OK(
      ParseWith("model: fm\noptimizer: {schedule: {kind: cosine, warmup_steps: 9, total_steps: 0}}"));
  EXPECT_THAT(refusal("model: fm\nembedding: {initializer: {kind: uniform, low: -3e38, high: 3e38}}"),
              HasSubstr("is too far from 'low'"));
  TANDEM_EXPECT_OK(ParseWith("model: fm\nembedding: {initializer: {kind: uniform, low: 1, high: 1}}"));
}

TEST(JobLimitsTest, TablesAndModes) {
  for (const char* good :
       {"embedding: {eviction: {kind: lru, byte_budget: 65536}}",
        "embedding: {eviction: {kind: ttl, ttl: 5, byte_budget: 0}}", "train: {mode: {bounded: 3000000000}}",
        "train: {mode: {gba: 3000000000}}", "tables: [{name: a-b.c, features: []}]"}) {
    const absl::StatusOr<JobSpec> job = ParseWith(absl::StrCat("model: fm\n", good));
    TANDEM_ASSERT_OK(job) << good;
    v1::TableConfig config =
        ps::EmbeddingTable(job->tables.empty() ? job->embedding.name : job->tables[0].name, 4,
                           job->embedding.optimizer, job->embedding.initializer);
    *config.mutable_eviction() = job->embedding.eviction;
    config.set_byte_budget(job->embedding.byte_budget);
    *config.mutable_update_mode() = job->train.mode;
    TANDEM_EXPECT_OK(ps::ValidateTableConfig(config)) << good;
  }
  for (const auto& [bad, why] :
       {std::pair("embedding: {eviction: {kind: lru, byte_budget: 65535}}", "must be 0 or at least 65536"),
        std::pair("train: {mode: {gba: 1, global_batch: 1048577}}", "in [0, 2^20]"),
        std::pair("tables: [{name: a/b, features: []}]",
                  "field 'name' in 'tables.0' must be 1 to 128 letters"),
        std::pair("tables: [{name: .a, features: []}]", "must be 1 to 128 letters")}) {
    EXPECT_THAT(std::string(ParseWith(absl::StrCat("model: fm\n", bad)).status().message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace tandem::worker
