#ifndef TANDEM_COLLECTIVES_STORE_LOG_H_
#define TANDEM_COLLECTIVES_STORE_LOG_H_

// An append-only file of records that several processes, perhaps on several hosts, read and write.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::collectives {

// Not thread-safe. Owns the descriptor. The layout, integers little-endian:
//
//   "tandem-store-1\n\0"                        16 bytes
//   A B C, A B C, ...                           records
//   A: u32 size of C   B: u64 checksum of A and C   C: the record's body
//
// Coordination is by open-file-description locks (fcntl), which work over NFS and which the kernel releases
// with the process, whatever ends it: one on byte 0 for reading (shared) and writing (exclusive), one on byte
// 1 that every user holds shared for its life, so that one can ask whether there are others; byte 2 is held
// by who waits for byte 0, so that nobody waits for ever. A writer that is killed leaves at most one torn
// record, at the end: readers stop before it, the next writer cuts it off.
//
// Errors name the file: PermissionDenied, NotFound (of its directory), ResourceExhausted (disk full, quota),
// FailedPrecondition (no such file, or one of something else), DataLoss, Unavailable (I/O error, removed,
// locked by others beyond the deadline).
class FileLog {
 public:
  using Apply = std::function<absl::Status(absl::string_view body)>;

  // Opens or creates the file and takes part in it, and returns with Lock(true) held and nothing read.
  static absl::StatusOr<std::unique_ptr<FileLog>> Open(const std::string& path, absl::Time deadline);
  ~FileLog();

  absl::Status Lock(bool exclusive, absl::Time deadline);
  void Unlock();

  // Whether there may be records that were not read yet: no lock needed. Always true where a file system may
  // answer from a cache.
  bool MayHaveMore() const;
  // Under a lock: gives what was appended since the last Read to `apply`; stops at its first error. Under an
  // exclusive one also cuts off a torn end.
  absl::Status Read(bool exclusive, const Apply& apply);
  // Under an exclusive lock, after Read. Either the whole record is in the file, or, after an error, nothing.
  absl::Status Append(absl::string_view body);

  // Under an exclusive lock: whether no other process or object uses the file now.
  bool Alone();
  // Under an exclusive lock, when Alone: forgets all records.
  absl::Status Clear();
  // Under an exclusive lock: removes the file, if it is still the one that was opened.
  void Remove();

  const std::string& path() const { return path_; }
  // FailedPrecondition etc. by `error` (an errno), naming file and what was done.
  absl::Status Failed(absl::string_view doing, int error) const;

 private:
  FileLog(std::string path, int fd, bool local) : path_(std::move(path)), fd_(fd), local_(local) {}
  // Whether path_ still leads to the open file.
  bool InPlace() const;
  absl::Status LockByte(int64_t byte, short type, absl::Time deadline);
  absl::Status WriteAll(absl::string_view bytes, uint64_t at);

  const std::string path_;
  const int fd_;
  const bool local_;   // a file system of this host alone: its size is never stale
  uint64_t read_ = 0;  // all before this has been read
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_LOG_H_
