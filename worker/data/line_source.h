// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_LINE_SOURCE_H_
#define TANDEM_WORKER_DATA_LINE_SOURCE_H_

// Presents text files as one long sequence of lines. The files (or what OpenDataFile unpacks from them) are
// memory-mapped: a line is a view of the page cache, and a 64-bit position identifies it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/data_file.h"

namespace tandem::worker {

// A loop that scans the files calls CheckUnchanged() once per this many lines.
inline constexpr uint64_t kLinesBetweenChecks = 1 << 16;

// Memory-mapped text files. Immutable after Open; thread-safe. Views and positions are valid while the source
// lives.
//
// If another program truncates a mapped file, touching the missing pages raises SIGBUS. CheckUnchanged()
// detects the truncation beforehand and costs one fstat() per file; readers call it for every batch. A file
// that is truncated between the check and the last line of that batch still kills the process. Replacing a
// file by rename() is always safe.
class LineSource {
 public:
  struct Options {
    // The first line of each file is a header, not an example.
    bool header = false;
    bool comments = false;  // lines that begin with '#' are not examples
  };

  // Finds the files (FindFiles) and maps them. Empty files that match a pattern are left out, since programs
  // that write in parallel leave some. Errors: those of FindFiles and OpenDataFile, and InvalidArgument if
  // there are no files, if one that was named is empty, if all that match a pattern are, or if a header is
  // empty.
  static absl::StatusOr<std::unique_ptr<LineSource>> Open(const std::vector<std::string>& paths,
                                                          const Options& options);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // A line of columns at the top of some of the files.
  struct Header {
    absl::string_view line;  // empty without Options::header
    std::string path;        // the first file that has it
  };
  // Returns the different headers, in the order of the files; at least one.
  const std::vector<Header>& headers() const { return headers_; }
  // Total size of the files.
  uint64_t bytes() const;
  // Returns the line that begins at `position`, without its end (LF or CRLF). `position` must come from a
  // Cursor.
  absl::string_view LineAt(uint64_t position) const;
  // Does the same, and stores the index of the file's header in headers().
  absl::string_view LineAt(uint64_t position, size_t* header) const;
  // Returns "path:line number". Reads the file up to `position`, so it is for messages only.
  std::string Describe(uint64_t position) const;
  // Returns DataLoss, naming the file, if a file has become shorter than it was at Open.
  absl::Status CheckUnchanged() const;

  // Iterates over the lines of all files in order, without headers, comments and empty lines. A byte order
  // mark at the start of a file and a missing line end at its end are allowed. Not thread-safe.
  class Cursor {
   public:
    explicit Cursor(const LineSource& source) : source_(&source) {}
    // Stores the next line and its position. Returns false at the end and leaves the arguments unchanged.
    bool Next(uint64_t* position, absl::string_view* line);
    // Returns which of headers() the file of the last line has. Requires that Next has returned true.
    size_t header() const { return source_->files_[file_ - 1].header; }

   private:
    const LineSource* source_;
    size_t file_ = 0;  // index of the file after the one being read
    uint64_t base_ = 0;
    const char* begin_ = nullptr;
    const char* at_ = nullptr;
    const char* end_ = nullptr;
  };

 private:
  struct File {
    std::string path;
    std::string pattern;  // FoundFile::pattern
    int fd = -1;
    const char* data = nullptr;
    size_t size = 0;
    size_t first_line = 0;  // offset of the first line after byte order mark and header
    size_t header = 0;      // index in headers_
    uint64_t base = 0;      // position of the file's first byte
  };
  LineSource() = default;
  absl::Status Map(const FoundFile& found);
  absl::Status ReadHeader(File* file);
  const File& FileOf(uint64_t position) const;

  Options options_;
  std::vector<File> files_;
  std::vector<Header> headers_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_SOURCE_H_
