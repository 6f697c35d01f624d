// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::cluster {
namespace {

constexpr absl::string_view kMagic("tandem-store-1\n\0", 16);
constexpr size_t kHeaderBytes = 12;              // A and B of a record
constexpr uint32_t kMaxBodyBytes = 1020u << 20;  // more than any call of a store can need

constexpr off_t kContentByte = 0;
constexpr off_t kPresenceByte = 1;
constexpr off_t kQueueByte = 2;

bool TryLock(int fd, off_t byte, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  int result;
  do result = fcntl(fd, F_OFD_SETLK, &lock);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

// FNV-1a: 64 bits against torn writes, not against deliberate changes.
uint64_t Checksum(uint32_t size, absl::string_view body) {
  uint64_t hash = 0xcbf29ce484222325u ^ size;
  for (unsigned char byte : body) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

bool IsLocalFileSystem(int fd) {
  struct statfs info;
  if (fstatfs(fd, &info) != 0) return false;
  switch (static_cast<unsigned long>(info.f_type)) {
    case EXT4_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
      return true;
    default:
      return false;
  }
}

std::string Header(absl::string_view body) {
  const uint32_t size = static_cast<uint32_t>(body.size());
  const uint64_t checksum = Checksum(size, body);
  std::string header(kHeaderBytes, '\0');
  std::memcpy(header.data(), &size, sizeof(size));
  std::memcpy(header.data() + sizeof(size), &checksum, sizeof(checksum));
  return header;
}

// Reads up to `size` bytes, fewer at the end of the file. Returns -1 and sets errno on an error.
ssize_t ReadAt(int fd, char* into, size_t size, uint64_t at) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd, into + done, size - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

// Returns whether the file has nothing but zeros from `at` on.
bool EndsInZeros(int fd, uint64_t at) {
  std::string chunk(1 << 16, '\0');
  while (true) {
    const ssize_t n = ReadAt(fd, chunk.data(), chunk.size(), at);
    if (n <= 0) return n == 0;
    if (absl::string_view(chunk.data(), n).find_first_not_of('\0') != absl::string_view::npos) return false;
    at += static_cast<uint64_t>(n);
  }
}

absl::Status ErrorOf(const std::string& path, absl::string_view doing, int error) {
  const std::string text =
      absl::StrCat("store file '", path, "': cannot ", doing, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(
          absl::StrCat(text, "; nothing was changed: make room and call again"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat(text, "; every rank must be able to read and write the file and its directory"));
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(absl::StrCat(text, "; its directory must exist on every host"));
    case ELOOP:
      return absl::FailedPreconditionError(absl::StrCat(
          "store file '", path, "' is a symbolic link, which is not followed; name the file itself"));
    case EISDIR:
      return absl::FailedPreconditionError(absl::StrCat(text, "; name a file in it"));
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::FailedPreconditionError(absl::StrCat(text, "; the file system must support fcntl locks"));
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace

absl::Status FileLog::Failed(absl::string_view doing, int error) const {
  return ErrorOf(path_, doing, error);
}

absl::StatusOr<std::unique_ptr<FileLog>> FileLog::Open(const std::string& path, absl::Time deadline) {
  while (true) {
    // A link in a directory from somebody else would make this process write to any file of its user.
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0) return ErrorOf(path, "open it", errno);
    std::unique_ptr<FileLog> log(new FileLog(path, fd, IsLocalFileSystem(fd)));
    struct stat info;
    if (fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
      return absl::FailedPreconditionError(absl::StrCat("store file '", path, "' is not a regular file"));
    }
    TANDEM_RETURN_IF_ERROR(log->Lock(/*exclusive=*/true, deadline));
    if (!log->InPlace()) continue;  // its last user removed it meanwhile: create a new one
    char magic[16];
    const ssize_t n = ReadAt(fd, magic, sizeof(magic), 0);
    if (n < 0) return ErrorOf(path, "read it", errno);
    if (absl::string_view(magic, n) != kMagic.substr(0, n)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", path, "' is no store file but something else, and was left as it is; choose another path"));
    }
    if (static_cast<size_t>(n) < kMagic.size()) TANDEM_RETURN_IF_ERROR(log->WriteAll(kMagic, 0));
    log->read_ = kMagic.size();
    return log;
  }
}

FileLog::~FileLog() { close(fd_); }

bool FileLog::InPlace() const {
  struct stat here, there;
  return fstat(fd_, &here) == 0 && stat(path_.c_str(), &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

absl::Status FileLog::Lock(bool exclusive, absl::Time deadline) {
  // The queue byte is held while this process waits for the content lock. So a process that writes without
  // pause cannot take the lock again before it.
  TANDEM_RETURN_IF_ERROR(LockByte(kQueueByte, F_WRLCK, deadline));
  const absl::Status locked = LockByte(kContentByte, exclusive ? F_WRLCK : F_RDLCK, deadline);
  (void)TryLock(fd_, kQueueByte, F_UNLCK);
  return locked;
}

absl::Status FileLog::LockByte(int64_t byte, short type, absl::Time deadline) {
  absl::Duration pause = absl::Microseconds(50);
  for (int attempt = 0; !TryLock(fd_, byte, type); ++attempt) {
    if (errno != EAGAIN && errno != EACCES) return Failed("lock it", errno);
    if (attempt < 4) {
      sched_yield();
      continue;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat("store file '", path_,
                                                 "' stays locked by another process until the time is up; is "
                                                 "one of its users stopped?"));
    }
    absl::SleepFor(std::min(pause, left));
    pause = std::min(pause * 2, absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

void FileLog::Unlock() { (void)TryLock(fd_, kContentByte, F_UNLCK); }

bool FileLog::MayHaveMore() const {
  struct stat info;
  return !local_ || fstat(fd_, &info) != 0 || info.st_nlink == 0 ||
         static_cast<uint64_t>(info.st_size) != read_;
}

absl::Status FileLog::Read(bool exclusive, const Apply& apply) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return Failed("look at it", errno);
  if (info.st_nlink == 0) {
    return absl::UnavailableError(
        absl::StrCat("store file '", path_, "' was removed while this process used it"));
  }
  const uint64_t end = static_cast<uint64_t>(info.st_size);
  auto damaged = [&](absl::string_view how) {
    return absl::DataLossError(
        absl::StrCat("store file '", path_, "' ", how, " at byte ", read_,
                     ": something else has written to it; end the job and remove the file"));
  };
  if (end < read_) return damaged("was cut short");
  std::string body;
  while (read_ < end) {
    char header[kHeaderBytes];
    uint32_t size = 0;
    uint64_t checksum = 0;
    const ssize_t got = ReadAt(fd_, header, sizeof(header), read_);
    if (got < 0) return Failed("read it", errno);
    if (static_cast<size_t>(got) < sizeof(header)) break;
    std::memcpy(&size, header, sizeof(size));
    std::memcpy(&checksum, header + sizeof(size), sizeof(checksum));
    const uint64_t next = read_ + kHeaderBytes + size;
    // No writer begins such a record, so it is not a torn end that might be cut off.
    if (size > kMaxBodyBytes) return damaged("is damaged");
    if (next > end) break;
    body.resize(size);
    const ssize_t n = ReadAt(fd_, body.data(), size, read_ + kHeaderBytes);
    if (n < 0) return Failed("read it", errno);
    if (static_cast<size_t>(n) < size) break;
    if (Checksum(size, body) != checksum) {
      if (EndsInZeros(fd_, next)) break;  // also at the end of the file
      return damaged("is damaged");
    }
    TANDEM_RETURN_IF_ERROR(apply(body));
    read_ = next;
  }
  // The remaining bytes are the torn record of a writer that was killed: no writer is active under this lock.
  if (exclusive && read_ < end && ftruncate(fd_, static_cast<off_t>(read_)) != 0) {
    return Failed("cut off a torn record", errno);
  }
  return absl::OkStatus();
}

absl::Status FileLog::WriteAll(absl::string_view bytes, uint64_t at) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write to it", errno);
    done += static_cast<size_t>(n);
  }
  // On a remote file system a full disk shows only when the data leaves this host's cache.
  if (!local_ && fdatasync(fd_) != 0) return Failed("write to it", errno);
  return absl::OkStatus();
}

absl::Status FileLog::Append(absl::string_view body) {
  TANDEM_CHECK(body.size() <= kMaxBodyBytes);
  const std::string record = absl::StrCat(Header(body), body);
  if (absl::Status written = WriteAll(record, read_); !written.ok()) {
    if (ftruncate(fd_, static_cast<off_t>(read_)) == 0) return written;
    // The next writer cuts off a part of a record. But the record may be whole (fdatasync has failed): then
    // all users, this one too, read it as a change like any other.
    return absl::UnavailableError(
        absl::StrCat(written.message(), "; and what was written cannot be removed (", std::strerror(errno),
                     "): it is unknown whether the change has happened"));
  }
  read_ += record.size();
  return absl::OkStatus();
}

absl::Status FileLog::Sync() const {
  return fdatasync(fd_) == 0 ? absl::OkStatus() : Failed("sync it", errno);
}

absl::Status FileLog::MoveTo(const std::string& path) {
  if (rename(path_.c_str(), path.c_str()) != 0) return Failed(absl::StrCat("rename it to ", path), errno);
  path_ = path;
  return absl::OkStatus();
}

bool FileLog::Alone() {
  const bool alone = TryLock(fd_, kPresenceByte, F_WRLCK);
  (void)TryLock(fd_, kPresenceByte, F_RDLCK);
  return alone;
}

absl::Status FileLog::Clear() {
  if (ftruncate(fd_, static_cast<off_t>(kMagic.size())) != 0) return Failed("empty it", errno);
  read_ = kMagic.size();
  return absl::OkStatus();
}

void FileLog::Remove() {
  if (InPlace()) (void)unlink(path_.c_str());
}

}  // namespace tandem::cluster
