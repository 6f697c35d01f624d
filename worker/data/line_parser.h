// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_LINE_PARSER_H_
#define TANDEM_WORKER_DATA_LINE_PARSER_H_

// Parses a line of text into a row of a batch.
//
// The id of a categorical value is HashBytes(value, s), with s = HashBytes(shared_as), or HashBytes(column
// name) if shared_as is empty. With hash_buckets = n the id is Mix64(s, bucket), where bucket is that hash
// scaled to [0, n). Hence equal texts of different features have different ids, unless the features have the
// same shared_as. An empty single value has an id like any other text; an empty multi-valued field has no
// ids. An index of libsvm or libfm is a number: its id is Mix64(s, index), whatever its position in the row.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// Maps a dense column to a feature: (transformed x - mean) * scale.
struct DenseScale {
  DenseTransform transform = DenseTransform::kNone;
  float mean = 0;
  float scale = 1;
  float empty = 0;  // value of an empty field, after the transform
};

// Parser of one file format. Not thread-safe: each reader has its own.
class LineParser {
 public:
  virtual ~LineParser() = default;
  // Writes the example of `line` into row `row` of `batch`. PrepareBatch must have made `batch` larger than
  // `row`, and rows must be written in ascending order. Returns false if the line is malformed: `*reason`
  // then names the defect, and the row must be written again or cut off by TrimBatch. Allocates nothing for
  // well-formed lines once the batch has grown to its size.
  virtual bool Parse(absl::string_view line, size_t row, Batch* batch, std::string* reason) = 0;
};

// Returns a parser of CSV, TSV or Criteo lines. `columns` are the names of the file's columns, in order; they
// must include all columns that `schema` names (ResolveSchema has checked that). `scales` has one entry per
// dense feature.
std::unique_ptr<LineParser> MakeDelimitedParser(const Schema& schema, const std::vector<std::string>& columns,
                                                const std::vector<DenseScale>& scales);
// Splits one line into fields as the parser does; used for headers. Returns false, and a `*reason`, if a
// quoted field is not closed or text follows its closing quote.
bool SplitDelimited(absl::string_view line, char delimiter, bool quotes, std::vector<std::string>* fields,
                    std::string* reason);

// Returns a parser of libsvm or libfm lines. schema.sparse is what ResolveSchema derived from the data.
std::unique_ptr<LineParser> MakeIndexParser(const Schema& schema);
// Returns the number of "index:value" pairs of a line, or -1 if it is malformed.
int CountIndexFeatures(const Schema& schema, absl::string_view line);

// Gives `batch` the columns of `schema` and space for `rows` examples. Reuses its memory.
void PrepareBatch(const Schema& schema, size_t rows, Batch* batch);
// Cuts a prepared batch to its first `rows` rows, all of which must have been written, and sets its size.
void TrimBatch(size_t rows, Batch* batch);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_PARSER_H_
