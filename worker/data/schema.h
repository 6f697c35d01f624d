// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_SCHEMA_H_
#define TANDEM_WORKER_DATA_SCHEMA_H_

// Completes the schema that a user wrote to the one that a parser needs: fills in defaults, checks names, and
// derives the rest from the data.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_source.h"
#include "worker/data/split.h"

namespace tandem::worker {

// Returns how the lines of a format are found in its files.
LineSource::Options LineOptions(const Schema& schema);

// The columns of files, by index in LineSource::headers().
using Layouts = std::vector<std::vector<std::string>>;

// Returns the columns of the files of `source`. They come from the headers, from the format (Criteo), or are
// named "0", "1", ... after the fields of the first line. A single empty list for libsvm and libfm. Without
// the label if it is optional and Criteo's lines lack it. InvalidArgument: there is neither header nor line,
// or two columns of a file have the same name.
absl::StatusOr<Layouts> FindColumns(const Schema& schema, const LineSource& source);

// Fills in the label, Criteo's features, and the features of libsvm and libfm: one per position if every row
// of `source` has the same number, else one multi-valued feature. `statistics`, if given, decides the latter
// instead of `source`. Then checks as CheckColumns does.
absl::Status ResolveSchema(const Layouts& layouts, const LineSource& source,
                           const std::optional<InputStatistics>& statistics, Schema* schema);

// Returns InvalidArgument, which names a file and lists its columns, if it does not have one that `schema`
// names. The label may be missing if it is optional, but then in all files. Also if Schema::kept has what the
// format does not.
absl::Status CheckColumns(const Schema& schema, const Layouts& layouts, const LineSource& source);

// Returns whether the files have a column of labels.
bool IsLabelled(const Schema& schema, const Layouts& layouts);

// Returns a parser for each layout.
std::vector<std::unique_ptr<LineParser>> MakeParsers(const Schema& schema, const Layouts& layouts,
                                                     const std::vector<DenseScale>& scales);

// Returns the scale of each dense feature. If a feature is to be standardized, reads the lines that `rule`
// puts into the training split; empty and malformed fields do not count. A column without variance is only
// centred.
absl::StatusOr<std::vector<DenseScale>> MeasureDense(const Schema& schema, const Layouts& layouts,
                                                     const LineSource& source, const SplitRule& rule);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SCHEMA_H_
