// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_LOG_H_
#define TANDEM_CLUSTER_STORE_LOG_H_

// FileLog is an append-only file of records that several processes, possibly on several hosts, read and
// write.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::cluster {

// Not thread-safe. Owns the file descriptor. The layout, with little-endian integers:
//
//   "tandem-store-1\n\0"                        16 bytes
//   A B C, A B C, ...                           records
//   A: u32 size of C   B: u64 checksum of A and C   C: the record's body
//
// Processes coordinate through open-file-description locks (fcntl). They work over NFS, and the kernel
// releases them when the process ends for any reason:
//
//   byte 0   held for reading (shared) and writing (exclusive)
//   byte 1   held shared by every user for its lifetime, so that a process can detect other users
//   byte 2   held by the process that waits for byte 0, so that waiting processes do not starve
//
// A writer that is killed leaves at most one torn record, at the end; a machine that dies may leave zeros
// there. Readers stop before that; the next writer cuts it off.
//
// Errors name the file: PermissionDenied, NotFound (of its directory), ResourceExhausted (disk full, quota),
// FailedPrecondition (no regular file, not a store's file, no fcntl locks), DataLoss, Unavailable (I/O error,
// removed, or locked by others beyond the deadline).
class FileLog {
 public:
  using Apply = std::function<absl::Status(absl::string_view body)>;

  // Opens or creates the file. Returns with Lock(true) held and nothing read. The caller must call Alone()
  // before it unlocks, which registers this object as a user.
  static absl::StatusOr<std::unique_ptr<FileLog>> Open(const std::string& path, absl::Time deadline);
  ~FileLog();

  // Blocks until this object holds the lock of byte 0. Unavailable after `deadline`.
  absl::Status Lock(bool exclusive, absl::Time deadline);
  void Unlock();

  // Returns true if there may be records that were not read yet. Needs no lock. Always true for file systems
  // whose file size may come from a cache.
  bool MayHaveMore() const;
  // Passes the records appended since the last Read to `apply`, and stops at its first error. Requires a
  // lock; under an exclusive lock it also cuts off a torn end.
  absl::Status Read(bool exclusive, const Apply& apply);
  // Appends a record. Requires an exclusive lock, and a Read before. After an error nothing of the record is
  // in the file; except after Unavailable, when the whole record may be.
  absl::Status Append(absl::string_view body);
  // Blocks until all records are on the disk. May run while another thread appends; whether the record that
  // is appended meanwhile is on the disk afterwards is unknown. After an error it is unknown for all records
  // since the last Sync that has succeeded, and later calls cannot tell.
  absl::Status Sync() const;
  // Returns the size of the file up to the last record that was read or appended.
  uint64_t size() const { return read_; }
  // Renames the file, which replaces another one of that name. SyncDirectory makes that durable.
  absl::Status MoveTo(const std::string& path);

  // Returns true if no other process or object uses the file now. Also registers this object as a user of the
  // file (byte 1) until it is destroyed. Requires an exclusive lock.
  bool Alone();
  // Removes all records. Requires an exclusive lock and Alone().
  absl::Status Clear();
  // Removes the file, if it is still the one that was opened. Requires an exclusive lock.
  void Remove();

  const std::string& path() const { return path_; }
  // Returns an error for `error` (an errno) that names the file and the action.
  absl::Status Failed(absl::string_view doing, int error) const;

 private:
  FileLog(std::string path, int fd, bool local) : path_(std::move(path)), fd_(fd), local_(local) {}
  // Returns true if path_ still refers to the open file.
  bool InPlace() const;
  absl::Status LockByte(int64_t byte, short type, absl::Time deadline);
  absl::Status WriteAll(absl::string_view bytes, uint64_t at);

  std::string path_;
  const int fd_;
  const bool local_;   // on a file system of this host alone: its size is never stale
  uint64_t read_ = 0;  // everything before this offset has been read
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_LOG_H_
