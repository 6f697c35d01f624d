// SPDX-License-Identifier: Apache-2.0
// Tests the messages that a user sees after a mistake, word by word.

#include "worker/job/job_errors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizers/optimizer.h"
#include "tests/testing/status_matchers.h"
#include "worker/job/job_parser.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Two good lines; a test's own text starts at line 3.
constexpr absl::string_view kGood =
    "data: {train: a.csv, label: y, sparse: [s]}\n"
    "model: {kind: lr}\n";

std::string Errors(absl::string_view text, std::vector<std::string> overrides = {}) {
  absl::StatusOr<JobSpec> job = ParseJob(text, "jobs/x.yaml", overrides);
  if (job.ok()) return "no error";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}
std::string ReportedErrors(absl::string_view text) { return Errors(absl::StrCat(kGood, text)); }

TEST(JobErrorsTest, AMisspeltFieldIsNamedWithLineAndSuggestion) {
  EXPECT_EQ(ReportedErrors("embedding:\n  optimiser: adam\n"),
            "jobs/x.yaml:4: unknown field 'optimiser' in 'embedding'; did you mean 'optimizer'?");
  EXPECT_EQ(ReportedErrors("trian: {}\n"), "jobs/x.yaml:3: unknown field 'trian'; did you mean 'train'?");
  EXPECT_EQ(ReportedErrors("train: {early_stoping: auc}\n"),
            "jobs/x.yaml:3: unknown field 'early_stoping' in 'train'; did you mean 'early_stopping'?");
  EXPECT_THAT(ReportedErrors("optimizer: {schedule: {kind: cosine, warmup: 5}}\n"),
              HasSubstr("did you mean 'warmup_steps'?"));
}

TEST(JobErrorsTest, AWrongValueIsReportedOnceAndNumbersWithoutRangeReadWell) {
  EXPECT_EQ(ReportedErrors("checkpoint: {dir: [a, b]}\n"),
            "jobs/x.yaml:3: field 'dir' in 'checkpoint' must be a path, not a list");
  EXPECT_EQ(Errors("data: {train: a.csv, label: {column: y, threshold: 1e999}, sparse: [s]}\nmodel: lr\n"),
            "jobs/x.yaml:1: field 'threshold' in 'data.label' must be a number, not '1e999'");
  EXPECT_EQ(
      ReportedErrors("embedding: {initializer: {kind: constant, value: 1e50}}\n"),
      "jobs/x.yaml:3: field 'value' in 'embedding.initializer' of kind 'constant' must be a number of at "
      "most 3.4028235e+38 in size, not '1e50'");
  EXPECT_EQ(ReportedErrors("data: {}\n").find(" ,"), std::string::npos);
}

TEST(JobErrorsTest, ControlCharactersAreQuotedAsEscapes) {
  EXPECT_THAT(ReportedErrors("\"\\x1b[31mtrain\": 1\n"), HasSubstr("unknown field '\\x1b[31mtrain'"));
  EXPECT_THAT(ReportedErrors("name: \"a\\nb\"\n"), HasSubstr("is 'a\\nb'"));
}

TEST(JobErrorsTest, AFieldUnlikeAnyOtherComesWithTheFieldsThereAre) {
  EXPECT_EQ(ReportedErrors("checkpoint: {zzz: 1}\n"),
            "jobs/x.yaml:3: unknown field 'zzz' in 'checkpoint'; its fields are dir, every_epochs, "
            "every_steps, every_minutes, keep, timeout_seconds, on_failure, deltas, async_save");
}

TEST(JobErrorsTest, AFieldOfAnotherKindIsUnknown) {
  EXPECT_EQ(
      ReportedErrors("embedding: {optimizer: {kind: sgd, beta1: 0.5}}\n"),
      "jobs/x.yaml:3: unknown field 'beta1' in 'embedding.optimizer' of kind 'sgd'; its fields are kind, lr, "
      "weight_decay, clip_row_norm, clip_global_norm, warmup_updates");
  EXPECT_THAT(Errors("data: {format: libfm, train: a, header: true}\nmodel: fm\n"),
              StartsWith("jobs/x.yaml:1: unknown field 'header' in 'data' of format 'libfm'"));
}

TEST(JobErrorsTest, WrongTypesSayWhatIsWanted) {
  EXPECT_EQ(ReportedErrors("train: {epochs: many}\n"),
            "jobs/x.yaml:3: field 'epochs' in 'train' must be a whole number, not 'many'");
  EXPECT_EQ(ReportedErrors("train: {epochs: 1.5}\n"),
            "jobs/x.yaml:3: field 'epochs' in 'train' must be a whole number, not '1.5'");
  EXPECT_EQ(ReportedErrors("optimizer: {lr: [1]}\n"),
            "jobs/x.yaml:3: field 'lr' in 'optimizer' of kind 'adam' must be a number, not a list");
  EXPECT_EQ(ReportedErrors("optimizer: {lr: nan}\n"),
            "jobs/x.yaml:3: field 'lr' in 'optimizer' of kind 'adam' must be a number, not 'nan'");
  EXPECT_EQ(ReportedErrors("train: 5\n"), "jobs/x.yaml:3: field 'train' must be a mapping, not '5'");
  EXPECT_EQ(ReportedErrors("tables: item\n"), "jobs/x.yaml:3: field 'tables' must be a list, not 'item'");
  EXPECT_EQ(ReportedErrors("name: [a]\n"), "jobs/x.yaml:3: field 'name' must be text, not a list");
  EXPECT_EQ(ReportedErrors("train:\n"), "jobs/x.yaml:3: field 'train' has no value");
  EXPECT_THAT(
      Errors("data: {train: {a: b}, label: y, sparse: [s]}\nmodel: lr\n"),
      StartsWith("jobs/x.yaml:1: field 'train' in 'data' of format 'csv' must be a path or a list of paths"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s], header: maybe}\nmodel: lr\n"),
              HasSubstr("must be true or false, not 'maybe'"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s], delimiter: ab}\nmodel: lr\n"),
              HasSubstr("must be a single character, or 'tab', not 'ab'"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s]}\nmodel: {kind: lr, hidden: [8, x]}\n"),
              StartsWith("jobs/x.yaml:2: field 'hidden' in 'model' must be a list of whole numbers in [1, "));
}

TEST(JobErrorsTest, ValuesOutOfRangeSayTheRange) {
  EXPECT_EQ(ReportedErrors("train: {epochs: 0}\n"),
            "jobs/x.yaml:3: field 'epochs' in 'train' must be a whole number of at least 1, not '0'");
  EXPECT_EQ(ReportedErrors("checkpoint: {keep: -1}\n"),
            "jobs/x.yaml:3: field 'keep' in 'checkpoint' must be a whole number of at least 1, not '-1'");
  EXPECT_THAT(ReportedErrors("embedding: {optimizer: {kind: sgd, lr: 0}}\n"),
              HasSubstr("must be a number greater than 0, not"));
  EXPECT_THAT(ReportedErrors("train: {seed: 99999999999999999999}\n"),
              HasSubstr("field 'seed' in 'train' must be"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s]}\nmodel: {kind: lr, dropout: 1}\n"),
              HasSubstr("jobs/x.yaml:2: field 'dropout' in 'model' must be a number in [0, 1), not '1'"));
}

TEST(JobErrorsTest, WrongChoicesListWhatThereIs) {
  EXPECT_EQ(
      ReportedErrors("embedding: {optimizer: {kind: adagard, lr: 0.1}}\n"),
      absl::StrCat("jobs/x.yaml:3: field 'kind' in 'embedding.optimizer' is 'adagard'; it must be one of ",
                   absl::StrJoin(ps::OptimizerKinds(), ", "), "; did you mean 'adagrad'?"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s]}\nmodel: dlmr\n"),
              ::testing::AllOf(HasSubstr("jobs/x.yaml:2: field 'kind' in 'model' is 'dlmr'"),
                               HasSubstr("did you mean 'dlrm'?")));
}

TEST(JobErrorsTest, MissingFieldsAreNamed) {
  EXPECT_THAT(Errors("name: a\nmodel: lr\n"), StartsWith("jobs/x.yaml:1: field 'data' is missing"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s]}\n"),
              StartsWith("jobs/x.yaml:1: field 'model' is missing"));
  EXPECT_THAT(Errors("model: lr\ndata:\n  label: y\n  sparse: [s]\n"),
              StartsWith("jobs/x.yaml:3: field 'train' in 'data' of format 'csv' is missing"));
  EXPECT_THAT(Errors("data: {train: a, sparse: [s]}\nmodel: lr\n"),
              HasSubstr("field 'label' in 'data' of format 'csv' is missing"));
  EXPECT_THAT(Errors("data: {train: a, label: y}\nmodel: lr\n"),
              HasSubstr("field 'sparse' in 'data' of format 'csv' is missing"));
  EXPECT_THAT(ReportedErrors("tables: [{features: [s]}]\n"),
              HasSubstr("field 'name' in 'tables.0' is missing"));
}

TEST(JobErrorsTest, FieldsThatContradictEachOtherAreRefused) {
  EXPECT_THAT(ReportedErrors("train: {mode: bounded}\n"), HasSubstr("write {bounded: 4}"));
  EXPECT_THAT(ReportedErrors("train: {mode: {kind: sync, bounded: 3}}\n"),
              HasSubstr("contradicts the other kind"));
  EXPECT_THAT(ReportedErrors("train: {mode: {kind: sync, gba: 3}}\n"), HasSubstr("contradicts 'kind'"));
  EXPECT_THAT(ReportedErrors("train: {mode: {kind: async, global_batch: 3}}\n"), HasSubstr("'gba' only"));
  EXPECT_THAT(
      ReportedErrors("embedding: {initializer: {kind: uniform, low: 2, high: 1}}\n"),
      HasSubstr("field 'high' in 'embedding.initializer' of kind 'uniform' must be at least 'low', 2"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s], split: {valid: 0.5, test: 0.5}}\nmodel: lr\n"),
              HasSubstr("valid + test must be less than 1"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s, s]}\nmodel: lr\n"),
              HasSubstr("names the column 's' twice"));
  EXPECT_THAT(Errors("data: {train: a, label: y, sparse: [s], split: {valid: 0}}\nmodel: lr\ntrain: "
                     "{early_stopping: auc}\n"),
              HasSubstr("has no validation split"));
  EXPECT_THAT(ReportedErrors("tables: [{name: item, features: [x]}]\n"),
              HasSubstr("which 'data.sparse' does not have"));
  EXPECT_THAT(ReportedErrors("tables: [{name: wide, features: [s]}]\n"),
              HasSubstr("a second table named 'wide'"));
  EXPECT_THAT(ReportedErrors("tables: [{name: a, features: [s]}, {name: b, features: [s]}]\n"),
              HasSubstr("puts the column 's' into two tables"));
  EXPECT_THAT(ReportedErrors("name: a/b\n"), HasSubstr("field 'name' is 'a/b'; it may have letters"));
}

TEST(JobErrorsTest, AFieldGivenTwiceIsRefused) {
  EXPECT_EQ(ReportedErrors("train: {epochs: 1}\ntrain: {epochs: 2}\n"),
            "jobs/x.yaml:4: field 'train' is given twice");
}

TEST(JobErrorsTest, AllErrorsOfAFileComeAtOnceInItsOrder) {
  EXPECT_EQ(ReportedErrors("checkpoint: {keep: x}\n"
                           "train:\n"
                           "  epochs: y\n"
                           "  batch_sise: 3\n"
                           "nam: z\n"),
            "jobs/x.yaml:3: field 'keep' in 'checkpoint' must be a whole number, not 'x'\n"
            "jobs/x.yaml:5: field 'epochs' in 'train' must be a whole number, not 'y'\n"
            "jobs/x.yaml:6: unknown field 'batch_sise' in 'train'; did you mean 'batch_size'?\n"
            "jobs/x.yaml:7: unknown field 'nam'; did you mean 'name'?");
}

TEST(JobErrorsTest, TextThatIsNoJobIsRefused) {
  EXPECT_EQ(Errors(""), "jobs/x.yaml: the job file is empty");
  EXPECT_EQ(Errors("# nothing\n"), "jobs/x.yaml: the job file is empty");
  EXPECT_THAT(Errors("- a\n- b\n"), StartsWith("jobs/x.yaml:1: a job file is a mapping"));
  EXPECT_THAT(Errors("a: 1\nb: [1, 2\nc: 3\n"), StartsWith("jobs/x.yaml:"));
  EXPECT_THAT(Errors("a: 1\nb: [1, 2\nc: 3\n"), HasSubstr("this is no YAML"));
  EXPECT_THAT(Errors("a: 1\n---\nb: 2\n"), HasSubstr("one YAML document"));
  EXPECT_THAT(Errors("a: 1\n---\nb: 2\n"), StartsWith("jobs/x.yaml:2:"));
  EXPECT_THAT(Errors(std::string(100000, '[')), HasSubstr("jobs/x.yaml"));
  EXPECT_THAT(Errors(std::string("\0\1\2\377{]", 6)), HasSubstr("jobs/x.yaml"));
}

// yaml-cpp 0.7 makes documents for ever of a text that it does not consume, or ignores the text.
TEST(JobErrorsTest, TextThatBelongsToNoDocumentIsRefusedAtOnce) {
  for (const std::string& text :
       {std::string(","), std::string(", a: 1"), std::string("\n ,\n"), std::string("--- ,"),
        std::string("{a: 1} ,"), std::string("[1] [2]"), std::string("\"a\" , b")}) {
    EXPECT_THAT(Errors(text), AllOf(StartsWith("jobs/x.yaml:"), HasSubstr("one YAML document"))) << text;
    EXPECT_THAT(Errors(kGood, {"train.epochs=" + text}),
                AllOf(StartsWith("--set"), HasSubstr("one YAML document")))
        << text;
  }
}

TEST(JobErrorsTest, ErrorsOfOverridesNameTheOverride) {
  EXPECT_THAT(Errors(kGood, {"model.kind=dlmr"}),
              StartsWith("--set model.kind=dlmr: field 'kind' in 'model' is 'dlmr'; it must be one of "));
  EXPECT_EQ(Errors(kGood, {"modle.kind=lr"}),
            "--set modle.kind=lr: unknown field 'modle'; did you mean 'model'?");
  EXPECT_EQ(Errors(kGood, {"train.epochs=many"}),
            "--set train.epochs=many: field 'epochs' in 'train' must be a whole number, not 'many'");
  EXPECT_EQ(Errors(kGood, {"train.epochs="}), "--set train.epochs=: field 'epochs' in 'train' has no value");
  EXPECT_EQ(Errors(kGood, {"train"}),
            "--set train: an override is written key=value, the key a dotted path such as model.kind");
  EXPECT_EQ(Errors(kGood, {"data.label.threshold=4"}),
            "--set data.label.threshold=4: 'data.label' is the plain value 'y'; override it as a whole: "
            "--set 'data.label={...}'");
  EXPECT_EQ(Errors(kGood, {"data.sparse.3=z"}),
            "--set data.sparse.3=z: '3' is no position in a list of 1 (the first is 0)");
  EXPECT_THAT(Errors(kGood, {"model.hidden=[1,"}),
              StartsWith("--set model.hidden=[1,: the value is no YAML"));
}

TEST(JobErrorsTest, SuggestionsComeOnlyForNearNames) {
  EXPECT_EQ(Suggestion("optimiser", {"lr", "optimizer"}), "; did you mean 'optimizer'?");
  EXPECT_EQ(Suggestion("LR", {"lr", "optimizer"}), "; did you mean 'lr'?");
  EXPECT_EQ(Suggestion("banana", {"lr", "optimizer"}), "");
  EXPECT_EQ(Suggestion("", {"lr"}), "");
}

}  // namespace
}  // namespace tandem::worker
