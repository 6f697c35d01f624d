// SPDX-License-Identifier: Apache-2.0
#include "ps/log/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/ipc/descriptor.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

absl::Status Failed(int error, absl::string_view doing, const std::string& path) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot ", doing, " ", path, ": the disk is full"));
  }
  // A link in a directory from somebody else would choose the file that is read or overwritten.
  if (error == ELOOP) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a symbolic link, which is not followed"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", doing, " ", path));
}

class PosixLogFile : public LogFile {
 public:
  PosixLogFile(std::string path, ipc::Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  absl::Status WriteAt(uint64_t offset, absl::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed(errno, "write", path_);
      offset += static_cast<uint64_t>(written);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return ::fdatasync(descriptor_.get()) == 0 ? absl::OkStatus() : Failed(errno, "sync", path_);
  }

 private:
  const std::string path_;
  const ipc::Descriptor descriptor_;
};

class Posix : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<LogFile>> Create(const std::string& path, uint64_t bytes) override {
    ipc::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!file.valid()) return Failed(errno, "create", path);
    if (bytes > 0) {
      if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0) {
        ::unlink(path.c_str());
        return Failed(error, absl::StrCat("allocate ", bytes, " bytes for"), path);
      }
    }
    return std::make_unique<PosixLogFile>(path, std::move(file));
  }
  absl::StatusOr<std::string> Read(const std::string& path, uint64_t offset, uint64_t bytes) override {
    const ipc::Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid()) return Failed(errno, "open", path);
    struct stat info;
    if (::fstat(file.get(), &info) != 0) return Failed(errno, "look at", path);
    if (!S_ISREG(info.st_mode)) return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    std::string content(offset >= size ? 0 : std::min(bytes, size - offset), '\0');
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t n = ::pread(file.get(), content.data() + done, content.size() - done,
                                static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed(errno, "read", path);
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    content.resize(done);
    return content;
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return Failed(error.value(), "list", directory);
    return names;
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : Failed(errno, "rename", from);
  }
  absl::Status Remove(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : Failed(errno, "remove", path);
  }
  absl::Status SyncFile(const std::string& path) override {
    const ipc::Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid()) return Failed(errno, "open", path);
    return ::fsync(file.get()) == 0 ? absl::OkStatus() : Failed(errno, "sync", path);
  }
  absl::Status RewriteFile(const std::string& path) override {
    TANDEM_ASSIGN_OR_RETURN(std::string content, Read(path, 0, std::numeric_limits<uint64_t>::max()));
    ipc::Descriptor descriptor(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (!descriptor.valid()) return Failed(errno, "open", path);
    PosixLogFile file(path, std::move(descriptor));
    // The zeros at the end were allocated, and not written.
    content.resize(content.find_last_not_of('\0') + 1);
    TANDEM_RETURN_IF_ERROR(file.WriteAt(0, content));
    return file.Sync();
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return tandem::SyncDirectory(directory);
  }
};

}  // namespace

FileSystem* PosixFileSystem() {
  static Posix* const posix = new Posix();
  return posix;
}

}  // namespace tandem::ps
