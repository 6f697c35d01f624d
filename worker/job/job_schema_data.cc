// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/job/job_schema_parts.h"

namespace tandem::worker {
namespace {

void DescribeLabel(Fields& f, Schema& schema, bool named_columns) {
  if (named_columns) f.Text("column", &schema.label, "column to predict; csv, tsv: required");
  if (f.reading() || schema.has_threshold) {
    if (f.Real("threshold", &schema.threshold, {},
               "the label is 1 when the value is at least this; without a threshold the value must be 0 or 1 "
               "(or -1)"))
      schema.has_threshold = true;
  }
}

void DescribeColumns(Fields& f, Schema& schema) {
  f.List<SparseFeature>(
      "sparse", "column", "categorical columns; criteo: C1..C26 unless given", &schema.sparse,
      [](Fields& g, SparseFeature& feature) {
        if (!g.Text("column", &feature.column, "name of the column") && g.reading())
          g.Wrong("column", "is missing");
        g.Character("separator", &feature.separator, "splits the values of a multi-valued field");
        if (g.reading() || feature.hash_buckets > 0) {
          g.Integer("hash_buckets", &feature.hash_buckets, AtLeast(1),
                    "number of ids that the values share; by default all 64 bits of the hash count");
        }
        if (g.reading() || !feature.shared_as.empty()) {
          g.Text("shared_as", &feature.shared_as, "features with the same text here share rows");
        }
      });
  f.List<DenseFeature>("dense", "column",
                       "numeric columns; an empty field is 0; criteo: I1..I13 with `log1p` unless given",
                       &schema.dense, [](Fields& g, DenseFeature& feature) {
                         if (!g.Text("column", &feature.column, "name of the column") && g.reading())
                           g.Wrong("column", "is missing");
                         g.Choice("transform", &feature.transform, {"none", "log1p", "standardize"},
                                  "what is done to the values");
                       });
}

template <typename Feature>
void CheckDistinct(Fields& f, const char* field, const std::vector<Feature>& features) {
  std::set<std::string> seen;
  for (const Feature& feature : features) {
    if (!seen.insert(feature.column).second) {
      f.Wrong(field, absl::StrCat("names the column '", feature.column, "' twice"));
    }
  }
}

}  // namespace

void DescribeData(Fields& f, JobSpec& job) {
  DatasetOptions& data = job.data;
  Schema& schema = data.schema;
  const Names formats = {"csv", "tsv", "criteo", "libsvm", "libfm"};
  f.Choice("format", &schema.format, formats, "format of the files");
  f.Note(absl::StrCat("of format '", formats[static_cast<int>(schema.format)], "'"));
  const bool csv = schema.format == DataFormat::kCsv;
  const bool named_columns = csv || schema.format == DataFormat::kTsv;
  const bool columns = named_columns || schema.format == DataFormat::kCriteo;

  if (!f.Paths("train", &data.train_files,
               "a file, a pattern such as `day_*.csv`, or a list of these; `.gz` files are unpacked. A "
               "pattern leaves out "
               "empty files and names that begin with `_` or `.`, such as `_SUCCESS`; required") &&
      f.reading())
    f.Wrong("train", "is missing: it names the file or files to learn from");
  f.Paths("valid", &data.valid_files, "the same; cut from `train` unless given");
  f.Paths("test", &data.test_files, "the same; cut from `train` unless given");
  f.Group("split", nullptr, "", [&](Fields& g) {
    g.Real("valid", &data.valid_fraction, Fraction(),
           "fraction of `train` to validate on, if `valid` is not given");
    g.Real("test", &data.test_fraction, Fraction(), "fraction of `train` to test on, if `test` is not given");
    g.Integer("seed", &data.split_seed, AtLeast(0), "of the hash that decides an example's split");
    g.Choice(
        "by", &data.split_by, {"text", "position"},
        "what is hashed with the seed. `text`: the text of the example's line, so that the order of lines "
        "does not matter and lines of the same text are never divided. `position`: the number of the "
        "example among those of all files, for data with many lines of the same text");
    if (data.valid_fraction + data.test_fraction >= 1) {
      g.Wrong("test", "leaves nothing to train on: valid + test must be less than 1");
    }
  });
  if (!csv && f.reading()) schema.delimiter = '\t';
  if (csv) f.Character("delimiter", &schema.delimiter, "csv: separates the columns");
  if (named_columns)
    f.Bool(
        "header", &schema.header,
        "csv, tsv: whether the first line of each file names its columns, in an order of its own; else they "
        "are `0`, `1`, ...");
  const bool labelled = f.Group("label", named_columns ? "column" : nullptr, "",
                                [&](Fields& g) { DescribeLabel(g, schema, named_columns); });
  if (columns) DescribeColumns(f, schema);
  if (columns) {
    int nan = schema.nan_is_missing ? 1 : 0;
    f.OneOf("nan", &nan, Names{"malformed", "missing"},
            "what `nan` or `NaN` in a dense column is: `malformed`, as any text that is no number, or "
            "`missing`, as an empty field (as `NA`, `null`, `NULL`, `None`, `\\N` and `?` always are)");
    schema.nan_is_missing = nan == 1;
  }
  int negative = schema.negative_index_is_bits ? 1 : 0;
  f.OneOf(
      "negative_index", &negative, Names{"malformed", "bits"},
      "libsvm, libfm: what a negative index is: `malformed`, or `bits`: the unsigned number of the same 64 "
      "bits, as Java and Spark write hashes of 2^63 and more");
  schema.negative_index_is_bits = negative == 1;
  if (f.reading() && columns && negative == 1) {
    f.Wrong("negative_index", "is for libsvm and libfm; in columns the text of a value is hashed, also `-5`");
  }
  f.Bool(
      "shuffle", &job.shuffle,
      "whether each epoch reads the training examples in a new random order; else in the order of the files");
  f.Integer("shuffle_buffer", &job.shuffle_buffer, AtLeast(1),
            "examples; a buffer as large as the split shuffles it uniformly");
  f.Integer("max_malformed", &data.max_malformed, AtLeast(0),
            "malformed lines (wrong number of fields, no number where one must be) that are skipped and "
            "reported; more are fatal");

  if (!f.reading()) return;
  if (named_columns && schema.label.empty()) {
    f.Wrong("label", labelled ? "names no column" : "is missing: it names the column to predict");
  }
  if (named_columns && schema.sparse.empty() && schema.dense.empty()) {
    f.Wrong("sparse", "is missing: 'sparse' and 'dense' list the columns to learn from, at least one in all");
  }
  CheckDistinct(f, "sparse", schema.sparse);
  CheckDistinct(f, "dense", schema.dense);
}

}  // namespace tandem::worker
