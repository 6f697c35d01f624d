#ifndef TANDEM_BASE_CHECKSUMMED_FILE_H_
#define TANDEM_BASE_CHECKSUMMED_FILE_H_

// The few things a checkpoint does to a disk. Errors name the path and the system's reason.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// A file being written front to back. Not thread-safe. Destroying it closes it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // ResourceExhausted when the disk is full: says how much had been written.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Returns when the bytes are on the disk.
  virtual absl::Status Sync() = 0;
};

// How files are opened for writing; tests pass one whose disk is full.
using OpenFile = std::function<absl::StatusOr<std::unique_ptr<WritableFile>>(const std::string& path)>;

// Creates `path`, replacing what is there.
absl::StatusOr<std::unique_ptr<WritableFile>> OpenPosixFile(const std::string& path);

// A file read at any offset. Thread-safe.
class ReadableFile {
 public:
  // NotFound when there is none.
  static absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Exactly `bytes` bytes into `out`; DataLoss when the file ends before.
  absl::Status Read(uint64_t offset, size_t bytes, char* out) const;

 private:
  ReadableFile(std::string path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  const std::string path_;
  const int descriptor_;
  const uint64_t size_;
};

// Makes renames within `directory` durable.
absl::Status SyncDirectory(const std::string& directory);
// Writes "<path>.tmp", syncs it, renames it to `path`. On an error nothing is left behind and `path` is as it
// was.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 const OpenFile& open = OpenPosixFile);

// zlib's CRC-32 of `bytes`, going on from `crc` (0 to begin).
uint32_t Crc32(absl::string_view bytes, uint32_t crc = 0);
// Of a whole file, read piece by piece.
absl::StatusOr<uint32_t> FileCrc32(const std::string& path, uint64_t* bytes);

}  // namespace tandem

#endif  // TANDEM_BASE_CHECKSUMMED_FILE_H_
