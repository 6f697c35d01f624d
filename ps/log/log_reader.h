// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_LOG_READER_H_
#define TANDEM_PS_LOG_LOG_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/log/file_system.h"
#include "ps/log/record.h"

namespace tandem::ps {

// A segment of a log on the disk.
struct LogSegment {
  std::string path;
  v1::LogSegmentHeader header;
  size_t records = 0;  // offset of the first record
};

// The segments of the log in a directory, in the order of their positions.
struct LogSegments {
  std::vector<LogSegment> segments;
  // The last segment if its beginning is damaged and it has no record: the server died while it made it.
  std::vector<std::string> unfinished;
  // The segment whose beginning is damaged, and all later ones. Empty without `accept_loss`.
  std::vector<std::string> lost;
  uint64_t term = 0;  // the largest term, also of the segments above; 0: there is none
};

// Reads the beginnings of all segments in `directory`; other files are ignored. DataLoss: the beginning of a
// segment is damaged, and it has records or later segments exist; unless `accept_loss`. FailedPrecondition: a
// newer version of Tandem wrote a segment.
absl::StatusOr<LogSegments> ListSegments(FileSystem& files, const std::string& directory,
                                         bool accept_loss = false);

// The end of a log that was read.
struct LogEnd {
  uint64_t position = 0;  // of the last record; the argument `after` if there is none
  uint64_t bytes = 0;     // of the records that were visited
  uint64_t records = 0;
  // Segments behind a bad record that was accepted as the end. The caller must remove them before it writes.
  std::vector<std::string> behind;
};

// Calls `visit` for each record after position `after`, in order, and stops at its first error.
//
// A bad record ends the log if no later record, and no later segment, says that it was safe: the server or
// its machine died while it was written. Elsewhere it is DataLoss, naming file, byte and position. So is a
// missing segment, also the one with record `after` + 1. `accept_loss` makes both the end of the log.
//
// Reads one segment at a time into memory.
absl::StatusOr<LogEnd> ReadLog(FileSystem& files, const std::vector<LogSegment>& segments, uint64_t after,
                               bool accept_loss, absl::FunctionRef<absl::Status(const Record&)> visit);

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_LOG_READER_H_
