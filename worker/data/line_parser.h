#ifndef TANDEM_WORKER_DATA_LINE_PARSER_H_
#define TANDEM_WORKER_DATA_LINE_PARSER_H_

// From a line of text to a row of a batch.
//
// The id of a categorical value is HashBytes(value, s) with s = HashBytes(shared_as, or else the column's
// name); with hash_buckets = n it is Mix64(s, bucket), where bucket is that hash scaled to [0, n). So equal
// texts of different features have different ids. An empty single value has an id like any other text; an
// empty multi-valued field has no ids. An index of libsvm/libfm is a number: its id is Mix64(s, index),
// whatever its position in the row.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"

namespace tandem::worker {

// How a dense column becomes a feature: (transformed x - mean) * scale.
struct DenseScale {
  DenseTransform transform = DenseTransform::kNone;
  float mean = 0;
  float scale = 1;
  float empty = 0;  // what an empty field becomes, after the transform
};

// Not thread-safe: one parser a reader.
class LineParser {
 public:
  virtual ~LineParser() = default;
  // Writes the example of `line` into row `row` of `batch`, which PrepareBatch made larger than `row`; rows
  // must be written in ascending order. False when the line is malformed: `*reason` says why, and the row
  // must be written again (or cut off by TrimBatch). Nothing is allocated once the batch has grown to its
  // size, unless a line is malformed.
  virtual bool Parse(absl::string_view line, size_t row, Batch* batch, std::string* reason) = 0;
};

// CSV, TSV and Criteo. `columns` are the names of the file's columns, in order; all columns that `schema`
// names must be among them (FindColumn has been asked). `scales` has one entry for each dense feature.
std::unique_ptr<LineParser> MakeDelimitedParser(const Schema& schema, const std::vector<std::string>& columns,
                                                const std::vector<DenseScale>& scales);
// The fields of one line, as the parser would see them; used for headers. False when a quoted field is not
// closed.
bool SplitDelimited(absl::string_view line, char delimiter, bool quotes, std::vector<std::string>* fields,
                    std::string* reason);

// libsvm and libfm. schema.sparse is what FindIndexFeatures made.
std::unique_ptr<LineParser> MakeIndexParser(const Schema& schema);
// Number of "index:value" pairs of a line, or -1 when it is malformed.
int CountIndexFeatures(const Schema& schema, absl::string_view line);

// Gives `batch` the columns of `schema` and room for `rows` examples, keeping its memory.
void PrepareBatch(const Schema& schema, size_t rows, Batch* batch);
// Cuts a prepared batch to its first `rows` rows, all of which must have been written, and sets its size.
void TrimBatch(size_t rows, Batch* batch);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_PARSER_H_
