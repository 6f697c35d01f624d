#ifndef TANDEM_WORKER_DATA_SCHEMA_H_
#define TANDEM_WORKER_DATA_SCHEMA_H_

// From the schema a user wrote to the one a parser needs: defaults filled in, names checked, and what only
// the data can tell found in the data.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_source.h"
#include "worker/data/split.h"

namespace tandem::worker {

// How the lines of a format are found in its files.
LineSource::Options LineOptions(const Schema& schema);

// The columns of the files of `source`: from the header, from the format (Criteo), or "0", "1", ... by
// counting those of the first line. Empty for libsvm/libfm. InvalidArgument when there is neither header nor
// line, or a name stands twice.
absl::StatusOr<std::vector<std::string>> FindColumns(const Schema& schema, const LineSource& source);

// Fills in the label, Criteo's features, and for libsvm/libfm one feature per position when every row of
// `source` has equally many, else one multi-valued feature. InvalidArgument when a column is not among
// `columns`: names those there are.
absl::Status ResolveSchema(const std::vector<std::string>& columns, const LineSource& source, Schema* schema);

// What each dense feature is scaled by. Reads the lines that `rule` puts into the training split when a
// feature is to be standardized; empty and malformed fields do not count. A column without variance is only
// centred.
absl::StatusOr<std::vector<DenseScale>> MeasureDense(const Schema& schema,
                                                     const std::vector<std::string>& columns,
                                                     const LineSource& source, const SplitRule& rule);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_SCHEMA_H_
