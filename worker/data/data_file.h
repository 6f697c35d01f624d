// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_DATA_FILE_H_
#define TANDEM_WORKER_DATA_DATA_FILE_H_

// Finds and opens data files, and recognises files that are not text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// A file to read.
struct FoundFile {
  std::string path;
  std::string pattern;  // that it matches; empty if it was named itself
};

// Returns `paths` with each pattern (*, ?, [...]) replaced by the files that match it, in the order of their
// names. A path that names a file is no pattern. A wildcard at the beginning of a name matches no name that
// begins with '_' or '.', as in Hadoop: these are not data, but marks such as _SUCCESS and files that are
// being written. NotFound: nothing matches a pattern.
absl::StatusOr<std::vector<FoundFile>> FindFiles(const std::vector<std::string>& paths);

// An open file. The owner of the struct closes `fd`.
struct OpenedFile {
  int fd = -1;
  uint64_t bytes = 0;
};

// Opens a file of text for reading. Does not wait for a writer of a FIFO. If gzip has compressed the file,
// unpacks it, a piece at a time, into a file without a name in $TMPDIR (or /var/tmp, or /tmp), and returns
// that file, which vanishes when it is closed. A shuffled reading needs any line at any time. Blocks until
// all is unpacked. The file may consist of several members, as `cat a.gz b.gz` makes it.
//
// An empty file has `bytes` 0. Other errors name the file: NotFound and PermissionDenied; InvalidArgument if
// it is a directory, a FIFO or otherwise no regular file, or is no text (CheckText); DataLoss if compressed
// data is damaged or cut short, with its position; ResourceExhausted and others if the unpacked data cannot
// be written.
absl::StatusOr<OpenedFile> OpenDataFile(const std::string& path);

// Returns InvalidArgument, which says what a file is, if it begins with `bytes` and these are not text:
// UTF-16 and UTF-32, known compressed and binary formats, and bytes many of which are control characters.
// `path` is for the message.
absl::Status CheckText(absl::string_view path, absl::string_view bytes);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_DATA_FILE_H_
