// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/job/job_parser.h"

namespace tandem::worker {
namespace {

// A job whose every value differs from its default, in several shapes, comes back from its own text
// unchanged. Texts are compared: two jobs that print alike are alike, since the writer prints every field.
void ExpectRoundTrip(absl::string_view text) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, ParseJob(text, "x.yaml"));
  const std::string written = JobToYaml(job);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec again, ParseJob(written, "written.yaml"));
  EXPECT_EQ(JobToYaml(again), written);
}

TEST(JobRoundTripTest, AMinimalJobComesBack) {
  ExpectRoundTrip("data: {train: a.csv, label: y, sparse: [s]}\nmodel: lr\n");
}

TEST(JobRoundTripTest, DefaultsArePrinted) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job,
                              ParseJob("data: {train: a.csv, label: y, dense: [x]}\nmodel: lr\n", "x.yaml"));
  const std::string written = JobToYaml(job);
  for (const char* field : {"byte_budget: 0", "spill: false", "bytes: 0", "max_uses: 8", "nan: malformed",
                            "by: text", "transform: none"}) {
    EXPECT_THAT(written, ::testing::HasSubstr(field));
  }
}

TEST(JobRoundTripTest, AFullJobComesBack) {
  ExpectRoundTrip(R"(
name: full
data:
  train: [a.csv, "b c.csv", "yes", "1"]
  valid: v.csv
  test: "$${HOME}.csv"
  split: {valid: 0.2, test: 0.05, seed: 7}
  header: false
  delimiter: "\t"
  label: {column: "true", threshold: -0.1}
  sparse: [s, {column: "a: b", separator: "|", hash_buckets: 100000, shared_as: "#x"}, "~", "null"]
  dense: [x1, {column: x2, transform: standardize}]
  shuffle: false
  shuffle_buffer: 3
  max_malformed: 5
model: {kind: dlrm, dim: 8, hidden: [], bottom: [3], interaction: cat, cross_layers: 2, cross: vector, dropout: 0.3, batch_norm: local, batch_norm_momentum: 0.3, batch_norm_epsilon: 0.25}
embedding: {optimizer: {kind: adam, lr: 0.1, beta1: 0.7}, initializer: {kind: uniform, low: -0.3, high: 0.1}, l2: 1e-7, pooling: server}
wide: {optimizer: {kind: ftrl, l1: 0.1, l2: 0.3}, initializer: {kind: constant, value: 3}}
tables:
  - {name: item, features: [s], optimizer: {kind: amsgrad, weight_decay: 0.1, clip_row_norm: 2, clip_global_norm: 3, warmup_updates: 7}, initializer: xavier, row_type: bf16, stochastic_rounding: true, admission: {kind: count, threshold: 4, counters: 1000}, eviction: {kind: lfu, byte_budget: 100000000}, spill: true}
  - {name: brand, features: ["a: b"], optimizer: adamw, row_type: f16, wire: {pull: bf16, push: int8, pack_ids: never, error_feedback: false}, admission: {kind: probability, probability: 0.25}, eviction: {kind: ttl, ttl: 1000}}
optimizer: {kind: momentum, lr: 0.3, momentum: 0.1, l2: 1e-8, weight_decay: 1e-9, schedule: {kind: step, every: 3, factor: 0.1, min_lr: 1e-6, warmup_steps: 4}}
train: {mode: {bounded: 7}, batch_size: 3, epochs: 2, seed: 5, lookahead: 3, max_in_flight: 9, bucket_bytes: 64KiB, early_stopping: {metric: logloss, patience: 4, min_delta: 0.1}, log_every_seconds: 0.1, timeout_seconds: 33}
checkpoint: {dir: some/where, every_epochs: 2, every_steps: 500, every_minutes: 1.5, keep: 9, timeout_seconds: 77, on_failure: stop, deltas: 12, async_save: true}
ps: {durability: log}
)");
}

TEST(JobRoundTripTest, AGlobalBatchComesBack) {
  ExpectRoundTrip("data: {train: a.csv, label: y, sparse: [s]}\nmodel: lr\ntrain: {global_batch_size: 64}\n");
}

TEST(JobRoundTripTest, EveryKindOfScheduleModeAndFormatComesBack) {
  for (const char* schedule : {"constant", "step", "exponential", "cosine", "reduce_on_plateau"}) {
    for (const char* mode :
         {"sync", "async", "{bounded: 3}", "gba", "{gba: 0}", "{gba: 7, global_batch: 12}"}) {
      for (const char* format : {"criteo", "libsvm", "libfm"}) {
        ExpectRoundTrip(std::string("data: {train: a, format: ") + format + "}\nmodel: fm\ntrain: {mode: " +
                        mode + "}\noptimizer: {schedule: " + schedule + "}\n");
      }
    }
  }
}

TEST(JobRoundTripTest, EveryOptimizerAndInitializerComesBack) {
  for (const char* optimizer :
       {"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adamw", "amsgrad", "ftrl"}) {
    for (const char* initializer : {"zeros", "constant", "uniform", "normal", "truncated_normal", "xavier"}) {
      ExpectRoundTrip(std::string("data: {train: a, format: libfm}\nmodel: fm\nembedding: {optimizer: ") +
                      optimizer + ", initializer: " + initializer + "}\n");
    }
  }
}

TEST(JobRoundTripTest, TablePoliciesArriveAndContradictionsAreNamed) {
  const std::string head = "data: {train: a.csv, label: y, sparse: [s]}\nmodel: lr\n";
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const JobSpec job,
      ParseJob(
          head +
              "embedding: {row_type: f16, admission: count, eviction: {kind: lru, byte_budget: 1000000}}\n",
          "x.yaml"));
  EXPECT_EQ(job.embedding.row_type, v1::TableConfig::F16);
  EXPECT_EQ(job.embedding.admission.kind(), "count");
  EXPECT_EQ(job.embedding.admission.threshold(), 2);
  EXPECT_EQ(job.embedding.eviction.kind(), "lru");
  EXPECT_EQ(job.embedding.byte_budget, 1000000);
  EXPECT_FALSE(job.embedding.spill);
  for (const char* wrong :
       {"{stochastic_rounding: true}", "{eviction: lru}", "{eviction: {byte_budget: 1000000}}",
        "{eviction: ttl}", "{spill: true}", "{spill: true, eviction: {kind: ttl, ttl: 5}}",
        "{admission: {kind: count, threshold: 1}}", "{row_type: f8}"}) {
    EXPECT_THAT(
        ParseJob(head + "embedding: " + wrong + "\n", "x.yaml"),
        ::tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("embedding")))
        << wrong;
  }
}

TEST(JobRoundTripTest, WiresArriveAndWhatTheyDoNotGoWithIsNamed) {
  const std::string head = "data: {train: a.csv, label: y, sparse: [s]}\nmodel: lr\n";
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const JobSpec job,
      ParseJob(head + "wide: {wire: {pull: bf16, push: int8, error_feedback_bytes: 1000}}\n", "x.yaml"));
  EXPECT_EQ(job.wide.wire.pull_values, v1::VALUES_BF16);
  EXPECT_EQ(job.wide.wire.push_values, v1::VALUES_INT8);
  EXPECT_EQ(job.wide.wire.pack_ids, ps::PackIds::kAuto);
  EXPECT_TRUE(job.wide.wire.UsesErrorFeedback());
  EXPECT_EQ(job.wide.wire.error_feedback_bytes, 1000u);
  EXPECT_FALSE(job.embedding.wire.UsesErrorFeedback());
  for (const char* wrong : {"{pull: f64}", "{push: int4}", "{pack_ids: sometimes}", "{error_feedback: true}",
                            "{push: int8, error_feedback_bytes: 0}", "{send: int8}"}) {
    EXPECT_THAT(ParseJob(head + "wide: {wire: " + wrong + "}\n", "x.yaml"),
                ::tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("wire")))
        << wrong;
  }
}

TEST(JobRoundTripTest, CachesArriveAndWhatTheyDoNotGoWithIsNamed) {
  const std::string head = "data: {train: a.csv, label: y, sparse: [s]}\nmodel: fm\n";
  const std::string text = head +
                           "embedding: {cache: {bytes: 48KiB, max_uses: 4, max_age: 7, push_bound: 3}}\n"
                           "wide: {cache: 1GiB}\ntrain: {mode: async}\n";
  ExpectRoundTrip(text);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, ParseJob(text, "x.yaml"));
  EXPECT_EQ(job.embedding.cache.bytes, 48 << 10);
  EXPECT_EQ(job.embedding.cache.max_age, 7);
  EXPECT_EQ(job.embedding.cache.max_uses, 4);
  EXPECT_EQ(job.embedding.cache.push_bound, 3);
  EXPECT_EQ(job.wide.cache.bytes, 1 << 30);
  for (const auto& [wrong, why] :
       {std::pair("embedding: {cache: 1MiB}\n", "sync"),
        std::pair("embedding: {cache: 1MB}\ntrain: {mode: async}\n", "as 64MiB"),
        std::pair("embedding: {cache: {bytes: 1MiB, push_bound: 0}}\n", "push_bound"),
        std::pair("embedding: {cache: 1MiB, pooling: server}\ntrain: {mode: async}\n", "only sums")}) {
    EXPECT_THAT(ParseJob(head + wrong, "x.yaml"),
                ::tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(why)))
        << wrong;
  }
}

TEST(JobRoundTripTest, PlacementsArriveAndWhatTheyDoNotGoWithIsNamed) {
  const std::string head = "data: {train: a.csv, label: y, sparse: [s, t]}\nmodel: fm\n";
  const std::string text = head +
                           "embedding: {placement: sharded, replicated_features: [s], l2_scope: all}\n"
                           "wide: {placement: replicated, sharded_features: [t]}\n"
                           "train: {mode: async, hot_rows: {budget: 8MiB, min_row_staleness: 2.5, "
                           "first_steps: 5, every_steps: 50, write_back_steps: 100}}\n";
  ExpectRoundTrip(text);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobSpec job, ParseJob(text, "x.yaml"));
  EXPECT_EQ(job.embedding.placement, ps::Placement::kSharded);
  EXPECT_THAT(job.embedding.replicated_features, ::testing::ElementsAre("s"));
  EXPECT_EQ(job.embedding.l2_scope, ps::L2Scope::kAll);
  EXPECT_EQ(job.wide.placement, ps::Placement::kReplicated);
  EXPECT_EQ(job.train.hot_rows.budget, 8 << 20);
  EXPECT_EQ(job.train.hot_rows.min_row_staleness, 2.5);
  EXPECT_EQ(job.train.hot_rows.every_steps, 50u);
  EXPECT_EQ(job.train.hot_rows.write_back_steps, 100u);
  for (const auto& [wrong, why] :
       {std::pair("wide: {cache: 1MiB, placement: replicated}\ntrain: {mode: async}\n",
                  "a replicated row needs no cache"),
        std::pair("embedding: {replicated_features: [s], pooling: server}\n", "pooling: worker"),
        std::pair("embedding: {placement: replicated, optimizer: {kind: sgd, clip_global_norm: 1}}\n",
                  "use 'clip_row_norm'"),
        std::pair("wide: {replicated_features: [s], sharded_features: [s]}\n",
                  "which 'replicated_features' names, too"),
        std::pair("train: {hot_rows: {first_steps: 0}}\n", "first_steps")}) {
    EXPECT_THAT(ParseJob(head + wrong, "x.yaml"),
                ::tandem::testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(why)))
        << wrong;
  }
}

}  // namespace
}  // namespace tandem::worker
