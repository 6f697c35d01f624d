// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_parser.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::string_view kMinimal =
    "data: {train: a.csv, label: y, sparse: [s]}\n"
    "model: lr\n";

JobSpec Parse(absl::string_view text, std::vector<std::string> overrides = {}) {
  absl::StatusOr<JobSpec> job = ParseJob(text, "x.yaml", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *std::move(job) : JobSpec();
}

TEST(JobParserTest, AMinimalJobHasTheDefaults) {
  const JobSpec job = Parse(kMinimal);
  EXPECT_EQ(job.name, "job");
  EXPECT_EQ(job.data.schema.format, DataFormat::kCsv);
  EXPECT_THAT(job.data.train_files, ElementsAre("a.csv"));
  EXPECT_THAT(job.data.valid_files, IsEmpty());
  EXPECT_EQ(job.data.schema.label, "y");
  EXPECT_FALSE(job.data.schema.has_threshold);
  EXPECT_EQ(job.data.schema.delimiter, ',');
  EXPECT_EQ(job.model.kind, "lr");
  EXPECT_EQ(job.model.dim, 16);
  EXPECT_EQ(job.embedding.name, "embedding");
  EXPECT_EQ(job.embedding.optimizer.kind(), "adagrad");
  EXPECT_EQ(job.wide.name, "wide");
  EXPECT_EQ(job.wide.initializer.kind(), "zeros");
  EXPECT_EQ(job.pooling, PoolingPlace::kWorker);
  EXPECT_EQ(job.optimizer.kind, "adam");
  EXPECT_EQ(job.schedule.kind, "constant");
  EXPECT_EQ(job.schedule.base, 0.001);
  EXPECT_EQ(job.train.mode.kind(), v1::UpdateMode::SYNC);
  EXPECT_EQ(job.train.early_stopping.patience, 0);
  EXPECT_EQ(job.checkpoint.dir, "runs/job");
}

TEST(JobParserTest, EveryDataFieldIsRead) {
  const JobSpec job = Parse(R"(
name: insteval-2.a_b
data:
  format: csv
  train: [a.csv, b.csv]
  valid: v.csv
  test: [t.csv]
  split: {valid: 0.2, test: 0.05, seed: 7}
  header: false
  delimiter: ";"
  label: {column: y, threshold: 4}
  sparse: [s, {column: tags, separator: "|", hash_buckets: 100000, shared_as: item}]
  dense: [x1, {column: x2, transform: standardize}, {column: x3, transform: log1p}]
  shuffle_buffer: 1e6
  max_malformed: 5
model: lr
)");
  EXPECT_EQ(job.name, "insteval-2.a_b");
  EXPECT_THAT(job.data.train_files, ElementsAre("a.csv", "b.csv"));
  EXPECT_THAT(job.data.valid_files, ElementsAre("v.csv"));
  EXPECT_THAT(job.data.test_files, ElementsAre("t.csv"));
  EXPECT_EQ(job.data.valid_fraction, 0.2);
  EXPECT_EQ(job.data.test_fraction, 0.05);
  EXPECT_EQ(job.data.split_seed, 7u);
  EXPECT_FALSE(job.data.schema.header);
  EXPECT_EQ(job.data.schema.delimiter, ';');
  EXPECT_EQ(job.data.schema.label, "y");
  EXPECT_TRUE(job.data.schema.has_threshold);
  EXPECT_EQ(job.data.schema.threshold, 4);
  ASSERT_EQ(job.data.schema.sparse.size(), 2u);
  EXPECT_EQ(job.data.schema.sparse[0].column, "s");
  EXPECT_EQ(job.data.schema.sparse[0].separator, '\0');
  EXPECT_EQ(job.data.schema.sparse[1].column, "tags");
  EXPECT_EQ(job.data.schema.sparse[1].separator, '|');
  EXPECT_EQ(job.data.schema.sparse[1].hash_buckets, 100000u);
  EXPECT_EQ(job.data.schema.sparse[1].shared_as, "item");
  ASSERT_EQ(job.data.schema.dense.size(), 3u);
  EXPECT_EQ(job.data.schema.dense[0].transform, DenseTransform::kNone);
  EXPECT_EQ(job.data.schema.dense[1].transform, DenseTransform::kStandardize);
  EXPECT_EQ(job.data.schema.dense[2].transform, DenseTransform::kLog1p);
  EXPECT_EQ(job.shuffle_buffer, 1000000u);
  EXPECT_EQ(job.data.max_malformed, 5u);
}

TEST(JobParserTest, EveryModelAndTableFieldIsRead) {
  const JobSpec job = Parse(R"(
data: {train: a.csv, label: y, sparse: [s, d, l]}
model: {kind: dlrm, dim: 8, hidden: [32, 16], bottom: [], cross_layers: 2, dropout: 0.25}
embedding:
  optimizer: {kind: adagrad, lr: 0.2, initial_accumulator: 0.1, epsilon: 1e-6}
  initializer: {kind: uniform, low: -0.5, high: 0.25}
  l2: 1e-5
  pooling: server
wide:
  optimizer: {kind: ftrl, lr: 0.3, l1: 0.5, l2: 2, initial_accumulator: 0.2, lr_power: -0.6}
  initializer: {kind: constant, value: 0.125}
tables:
  - name: item
    features: [d]
    optimizer: {kind: adam, lr: 0.01, beta1: 0.8, beta2: 0.99, epsilon: 1e-7}
    initializer: {kind: truncated_normal, mean: 0.5, stddev: 2}
    l2: 0.5
  - {name: lecture, features: [l], optimizer: {kind: momentum, lr: 0.02, momentum: 0.5}, initializer: {kind: xavier, gain: 2}}
)");
  EXPECT_EQ(job.model.kind, "dlrm");
  EXPECT_EQ(job.model.dim, 8);
  EXPECT_THAT(job.model.hidden, ElementsAre(32, 16));
  EXPECT_THAT(job.model.bottom, IsEmpty());
  EXPECT_EQ(job.model.cross_layers, 2);
  EXPECT_EQ(job.model.dropout, 0.25f);
  EXPECT_EQ(job.embedding.optimizer.kind(), "adagrad");
  EXPECT_THAT(job.embedding.optimizer.learning_rate(), FloatEq(0.2f));
  EXPECT_THAT(job.embedding.optimizer.initial_accumulator(), FloatEq(0.1f));
  EXPECT_THAT(job.embedding.optimizer.epsilon(), FloatEq(1e-6f));
  EXPECT_THAT(job.embedding.optimizer.l2(), FloatEq(1e-5f));
  EXPECT_EQ(job.embedding.initializer.kind(), "uniform");
  EXPECT_EQ(job.embedding.initializer.low(), -0.5f);
  EXPECT_EQ(job.embedding.initializer.high(), 0.25f);
  EXPECT_EQ(job.pooling, PoolingPlace::kServer);
  EXPECT_EQ(job.wide.optimizer.kind(), "ftrl");
  EXPECT_EQ(job.wide.optimizer.l1(), 0.5f);
  EXPECT_EQ(job.wide.optimizer.l2(), 2.0f);
  EXPECT_THAT(job.wide.optimizer.learning_rate_power(), FloatEq(-0.6f));
  EXPECT_EQ(job.wide.initializer.value(), 0.125f);
  ASSERT_EQ(job.tables.size(), 2u);
  EXPECT_EQ(job.tables[0].name, "item");
  EXPECT_THAT(job.tables[0].features, ElementsAre("d"));
  EXPECT_EQ(job.tables[0].optimizer.kind(), "adam");
  EXPECT_THAT(job.tables[0].optimizer.beta1(), FloatEq(0.8f));
  EXPECT_THAT(job.tables[0].optimizer.beta2(), FloatEq(0.99f));
  EXPECT_EQ(job.tables[0].optimizer.l2(), 0.5f);
  EXPECT_EQ(job.tables[0].initializer.mean(), 0.5f);
  EXPECT_EQ(job.tables[0].initializer.stddev(), 2.0f);
  EXPECT_EQ(job.tables[1].optimizer.momentum(), 0.5f);
  EXPECT_EQ(job.tables[1].initializer.gain(), 2.0f);
}

TEST(JobParserTest, EveryTrainingFieldIsRead) {
  const JobSpec job = Parse(R"(
data: {train: a.csv, label: y, sparse: [s]}
model: lr
optimizer:
  kind: adam
  lr: 0.01
  l2: 0.2
  weight_decay: 0.1
  beta1: 0.5
  beta2: 0.75
  epsilon: 1e-4
  schedule: {kind: reduce_on_plateau, warmup_steps: 10, factor: 0.25, patience: 3, min_delta: 0.5, min_lr: 1e-5}
train:
  mode: {bounded: 4}
  batch_size: 128
  epochs: 3
  seed: 9
  lookahead: 2
  max_in_flight: 16
  early_stopping: {metric: logloss, patience: 1, min_delta: 0.001}
  log_every_seconds: 0.5
  timeout_seconds: 20
checkpoint: {dir: out/x, every_epochs: 0, every_steps: 100, every_minutes: 0.5, keep: 1, on_failure: stop, deltas: 7, async_save: true}
ps: {durability: log}
)");
  EXPECT_EQ(job.schedule.base, 0.01);
  EXPECT_THAT(job.optimizer.l2, FloatEq(0.2f));
  EXPECT_THAT(job.optimizer.weight_decay, FloatEq(0.1f));
  EXPECT_EQ(job.optimizer.beta1, 0.5f);
  EXPECT_EQ(job.optimizer.beta2, 0.75f);
  EXPECT_THAT(job.optimizer.epsilon, FloatEq(1e-4f));
  EXPECT_EQ(job.schedule.kind, "reduce_on_plateau");
  EXPECT_EQ(job.schedule.warmup_steps, 10u);
  EXPECT_EQ(job.schedule.factor, 0.25);
  EXPECT_EQ(job.schedule.patience, 3);
  EXPECT_EQ(job.schedule.min_delta, 0.5);
  EXPECT_EQ(job.schedule.min_lr, 1e-5);
  EXPECT_EQ(job.train.mode.kind(), v1::UpdateMode::BOUNDED);
  EXPECT_EQ(job.train.mode.staleness(), 4u);
  EXPECT_EQ(job.train.batch_size, 128u);
  EXPECT_EQ(job.train.epochs, 3);
  EXPECT_EQ(job.train.seed, 9u);
  EXPECT_EQ(job.model.seed, 9u);
  EXPECT_EQ(job.train.lookahead, 2);
  EXPECT_EQ(job.train.max_in_flight, 16);
  EXPECT_EQ(job.train.early_stopping.metric, Metric::kLogloss);
  EXPECT_EQ(job.train.early_stopping.patience, 1);
  EXPECT_EQ(job.train.early_stopping.min_delta, 0.001);
  EXPECT_EQ(job.train.log_every, absl::Milliseconds(500));
  EXPECT_EQ(job.train.timeout, absl::Seconds(20));
  EXPECT_EQ(job.checkpoint.dir, "out/x");
  EXPECT_EQ(job.checkpoint.every_epochs, 0);
  EXPECT_EQ(job.checkpoint.every_steps, 100u);
  EXPECT_TRUE(job.checkpoint.async_save);
  EXPECT_EQ(job.checkpoint.every_time, absl::Seconds(30));
  EXPECT_EQ(job.checkpoint.on_failure, SaveFailure::kStop);
  EXPECT_EQ(job.checkpoint.deltas, 7);
  EXPECT_EQ(job.ps.durability, ServerDurability::kLog);
  EXPECT_TRUE(job.checkpoint.periodic());
  EXPECT_EQ(job.checkpoint.keep, 1);
}

TEST(JobParserTest, ABatchIsThatOfAWorkerOrOfAll) {
  const std::string head = "data: {train: a.csv, label: y, sparse: [s], shuffle: false}\nmodel: lr\n";
  const JobSpec job = Parse(head + "train: {global_batch_size: 4096}\n");
  EXPECT_EQ(job.train.global_batch_size, 4096u);
  EXPECT_FALSE(job.shuffle);
  EXPECT_EQ(Parse(head).train.global_batch_size, 0u);
  EXPECT_THAT(ParseJob(head + "train: {batch_size: 3, global_batch_size: 6}\n", "x.yaml"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("contradicts 'batch_size'")));
  // An override replaces the other one.
  EXPECT_EQ(Parse(head + "train: {batch_size: 3}\n", {"train.global_batch_size=6"}).train.global_batch_size,
            6u);
  const JobSpec back = Parse(head + "train: {global_batch_size: 6}\n", {"train.batch_size=3"});
  EXPECT_EQ(back.train.global_batch_size, 0u);
  EXPECT_EQ(back.train.batch_size, 3u);
}

TEST(JobParserTest, TheVariantsOfModelsAreRead) {
  const JobSpec job = Parse(R"(
data: {train: a.csv, label: y, sparse: [s]}
model: {kind: dcn, cross: vector, interaction: cat, batch_norm: sync, batch_norm_momentum: 0.5, batch_norm_epsilon: 1e-3}
)");
  EXPECT_EQ(job.model.cross, "vector");
  EXPECT_EQ(job.model.interaction, "cat");
  EXPECT_EQ(job.model.batch_norm, "sync");
  EXPECT_EQ(job.model.batch_norm_momentum, 0.5f);
  EXPECT_THAT(job.model.batch_norm_epsilon, FloatEq(1e-3f));
}

TEST(JobParserTest, APlainNameStandsForItsGroup) {
  const JobSpec job = Parse(R"(
data: {train: a.csv, label: y, sparse: [s]}
model: fm
embedding: {optimizer: sgd, initializer: zeros}
optimizer: {kind: momentum, schedule: cosine}
train: {mode: async, early_stopping: logloss}
)");
  EXPECT_EQ(job.model.kind, "fm");
  EXPECT_EQ(job.embedding.optimizer.kind(), "sgd");
  EXPECT_EQ(job.embedding.initializer.kind(), "zeros");
  EXPECT_EQ(job.optimizer.kind, "momentum");
  EXPECT_EQ(job.schedule.kind, "cosine");
  EXPECT_EQ(job.train.mode.kind(), v1::UpdateMode::ASYNC);
  EXPECT_EQ(job.train.early_stopping.metric, Metric::kLogloss);
  EXPECT_EQ(job.train.early_stopping.patience, 2);
}

TEST(JobParserTest, FormatsThatFindTheirColumnsNeedNone) {
  const JobSpec criteo = Parse("data: {format: criteo, train: a.tsv}\nmodel: dlrm\n");
  EXPECT_EQ(criteo.data.schema.format, DataFormat::kCriteo);
  EXPECT_EQ(criteo.data.schema.delimiter, '\t');
  const JobSpec libfm = Parse("data: {format: libfm, train: a, label: {threshold: 4}}\nmodel: fm\n");
  EXPECT_TRUE(libfm.data.schema.has_threshold);
  EXPECT_EQ(libfm.data.schema.threshold, 4);
}

TEST(JobParserTest, OverridesReplaceAndAddFields) {
  const JobSpec job =
      Parse(kMinimal, {"data.train=b.csv", "model=dlrm", "train.epochs=3", "embedding.optimizer.lr=0.25",
                       "data.sparse.0=z", "train.mode={bounded: 2}"});
  EXPECT_THAT(job.data.train_files, ElementsAre("b.csv"));
  EXPECT_EQ(job.model.kind, "dlrm");
  EXPECT_EQ(job.train.epochs, 3);
  EXPECT_EQ(job.embedding.optimizer.learning_rate(), 0.25f);
  EXPECT_EQ(job.data.schema.sparse[0].column, "z");
  EXPECT_EQ(job.train.mode.staleness(), 2u);
}

TEST(JobParserTest, AnOverrideMayHoldEqualsSignsAndLists) {
  const JobSpec job = Parse("data: {train: a.csv, label: y, sparse: [s]}\nmodel: {kind: fm}\n",
                            {"data.train=[a=b.csv, c.csv]", "model.hidden=[7, 5]", "model.kind=deepfm"});
  EXPECT_THAT(job.data.train_files, ElementsAre("a=b.csv", "c.csv"));
  EXPECT_THAT(job.model.hidden, ElementsAre(7, 5));
  EXPECT_EQ(job.model.kind, "deepfm");
}

TEST(JobParserTest, AnOverrideOfAnAliasLeavesTheOthersAlone) {
  const JobSpec job = Parse(R"(
data: {train: a.csv, label: y, sparse: [s]}
model: lr
embedding: &table {optimizer: {kind: sgd, lr: 0.5}}
wide: *table
)",
                            {"wide.optimizer.lr=0.25"});
  EXPECT_EQ(job.embedding.optimizer.learning_rate(), 0.5f);
  EXPECT_EQ(job.wide.optimizer.learning_rate(), 0.25f);
}

TEST(JobParserTest, AMissingFileIsNotFound) {
  testing::TempDir dir;
  EXPECT_THAT(LoadJob(dir.File("no.yaml")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no.yaml")));
  EXPECT_THAT(LoadJob(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a directory")));
}

}  // namespace
}  // namespace tandem::worker
