#ifndef TANDEM_WORKER_DATA_LINE_SOURCE_H_
#define TANDEM_WORKER_DATA_LINE_SOURCE_H_

// Text files seen as one long sequence of lines. The files are mapped: a line is a view of the page cache,
// and a 64-bit position is all that must be remembered of it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// What scans a file looks that often whether it is as long as it was.
inline constexpr uint64_t kLinesBetweenChecks = 1 << 16;

// Immutable after Open; thread-safe. Views and positions are valid while the source lives.
//
// A mapped file that is cut short by somebody else raises SIGBUS when its missing pages are touched.
// CheckUnchanged() finds that out beforehand and costs one fstat() a file; readers call it for every batch.
// What remains is the time between the check and the last line of that batch: a file that shrinks right then
// still kills the process. Replacing a file by rename() is always safe.
class LineSource {
 public:
  struct Options {
    bool header = false;    // the first line of each file is no example; it must be the same in all files
    bool comments = false;  // lines that begin with '#' are no examples
  };

  // Errors: NotFound or PermissionDenied (names the file), InvalidArgument (no files, an empty file, a
  // directory, a header unlike that of the first file).
  static absl::StatusOr<std::unique_ptr<LineSource>> Open(const std::vector<std::string>& paths,
                                                          const Options& options);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // The header line; empty without Options::header.
  absl::string_view header() const { return header_; }
  uint64_t bytes() const;
  // The line that begins at `position`, which came from a Cursor; without its end (LF or CRLF).
  absl::string_view LineAt(uint64_t position) const;
  // "path:line number". Reads the file up to there: for messages only.
  std::string Describe(uint64_t position) const;
  // DataLoss when a file became shorter than it was at Open; names it.
  absl::Status CheckUnchanged() const;

  // Goes through the lines of all files in order, without headers, comments and empty lines. A byte order
  // mark at the start of a file and a missing line end at the end of one are tolerated. Not thread-safe.
  class Cursor {
   public:
    explicit Cursor(const LineSource& source) : source_(&source) {}
    // False at the end, with the arguments unchanged.
    bool Next(uint64_t* position, absl::string_view* line);

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
    int fd = -1;
    const char* data = nullptr;
    size_t size = 0;
    size_t first_line = 0;  // offset of the first line that may be an example
    uint64_t base = 0;      // position of the file's first byte
  };
  LineSource() = default;
  absl::Status Map(const std::string& path);
  absl::Status ReadHeader(File* file);
  const File& FileOf(uint64_t position) const;

  Options options_;
  std::vector<File> files_;
  absl::string_view header_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_LINE_SOURCE_H_
