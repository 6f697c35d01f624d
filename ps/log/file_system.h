// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_LOG_FILE_SYSTEM_H_
#define TANDEM_PS_LOG_FILE_SYSTEM_H_

// The operations on files that the log and its snapshots need. Tests pass a file system that loses unsynced
// bytes and tears writes. All calls block on the disk, without a deadline. Errors name the path and the
// system's reason; ResourceExhausted means that the disk is full.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::ps {

// A file that is written. Not thread-safe. The destructor closes the file.
class LogFile {
 public:
  virtual ~LogFile() = default;
  // Writes all of `bytes` at `offset`. After an error any part of them may have been written.
  virtual absl::Status WriteAt(uint64_t offset, absl::string_view bytes) = 0;
  // Blocks until everything that was written is on the disk.
  virtual absl::Status Sync() = 0;
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates the file `path`, or replaces an existing one, with `bytes` zeros whose space is allocated. After
  // an error no file is left.
  virtual absl::StatusOr<std::unique_ptr<LogFile>> Create(const std::string& path, uint64_t bytes) = 0;
  // Reads up to `bytes` bytes of the file from `offset`: fewer at its end. NotFound: there is no such file.
  virtual absl::StatusOr<std::string> Read(const std::string& path, uint64_t offset, uint64_t bytes) = 0;
  // Returns the names of the files in `directory`, in no particular order.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Removes the file. OK if there is none.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Blocks until the contents of the file are on the disk, also those that another process has written.
  virtual absl::Status SyncFile(const std::string& path) = 0;
  // Writes the contents of the file again, and blocks until they are on the disk. After a sync that failed,
  // the kernel takes bytes for safe that are in its cache only; a second sync would not write them.
  virtual absl::Status RewriteFile(const std::string& path) = 0;
  // Blocks until the names in `directory` are on the disk.
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
};

// Returns the machine's file system. It is never destroyed.
FileSystem* PosixFileSystem();

}  // namespace tandem::ps

#endif  // TANDEM_PS_LOG_FILE_SYSTEM_H_
