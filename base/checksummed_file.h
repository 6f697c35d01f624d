// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CHECKSUMMED_FILE_H_
#define TANDEM_BASE_CHECKSUMMED_FILE_H_

// File operations for checkpoints: writing, reading at offsets, CRC-32 and atomic replacement. Calls block on
// the disk. Errors name the path and the system's reason.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A file that is written from front to back. Not thread-safe. The destructor closes the file.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all of `bytes`. ResourceExhausted: the disk is full; the message says how much had been written.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Blocks until all bytes are on the disk.
  virtual absl::Status Sync() = 0;
};

// A function that opens a file for writing. Tests pass one whose disk is full.
using OpenFile = std::function<absl::StatusOr<std::unique_ptr<WritableFile>>(const std::string& path)>;

// Creates the file `path`, or truncates an existing one. Fails if it is a symbolic link.
absl::StatusOr<std::unique_ptr<WritableFile>> OpenPosixFile(const std::string& path);

// A file that can be read at any offset. Thread-safe.
class ReadableFile {
 public:
  // Opens a file that the user has named. NotFound: it does not exist. InvalidArgument: it is not a regular
  // file.
  static absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path);
  // Opens the file `name`, a relative path, of a directory that may be from somebody else. PermissionDenied:
  // `name`, or a symbolic link in it, leads out of `directory`. Otherwise as Open.
  static absl::StatusOr<std::unique_ptr<ReadableFile>> OpenBelow(const std::string& directory,
                                                                 const std::string& name);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  // The size in bytes when the file was opened.
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Reads exactly `bytes` bytes from `offset` into `out`. DataLoss: the file ends before that.
  absl::Status Read(uint64_t offset, size_t bytes, char* out) const;
  // Returns the whole file. OutOfRange: it has more than `max_bytes`. DataLoss: it was cut off since it was
  // opened.
  absl::StatusOr<std::string> ReadAll(uint64_t max_bytes = std::numeric_limits<uint64_t>::max()) const;

 private:
  ReadableFile(std::string path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  static absl::StatusOr<std::unique_ptr<ReadableFile>> Of(std::string path, int descriptor);
  const std::string path_;
  const int descriptor_;
  const uint64_t size_;
};

// Returns whether `name`, from a file or a peer, is the name of a file within a directory: at most 255 bytes,
// without '/' and control characters, and neither "." nor "..".
bool IsPlainFileName(absl::string_view name);

// Makes renames within `directory` durable, if the file system can do that.
absl::Status SyncDirectory(const std::string& directory);
// Writes "<path>.tmp", syncs it and renames it to `path`. After an error no temporary file is left and `path`
// is unchanged. Does not sync the directory.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 const OpenFile& open = OpenPosixFile);

// Returns zlib's CRC-32 of `bytes`, continued from `crc`; 0 begins a new one.
uint32_t Crc32(absl::string_view bytes, uint32_t crc = 0);
// Returns the CRC-32 of two strings in a row, from the CRC-32 of each and the size of the second.
uint32_t Crc32Combine(uint32_t first, uint32_t second, uint64_t second_bytes);
// Returns the CRC-32 of a whole file, which is read in chunks.
absl::StatusOr<uint32_t> FileCrc32(const ReadableFile& file);

}  // namespace tandem

#endif  // TANDEM_BASE_CHECKSUMMED_FILE_H_
