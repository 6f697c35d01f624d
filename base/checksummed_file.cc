// SPDX-License-Identifier: Apache-2.0
#include "base/checksummed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/open_beneath.h"
#include "base/status.h"

namespace tandem {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

absl::Status Failed(int error, absl::string_view what) { return absl::ErrnoToStatus(error, what); }

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~PosixWritableFile() override { ::close(descriptor_); }

  absl::Status Append(absl::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        if (errno == ENOSPC || errno == EDQUOT) {
          return absl::ResourceExhaustedError(absl::StrCat("the disk of ", path_, " is full: ", written_,
                                                           " bytes were written, the next ", bytes.size(),
                                                           " do not fit"));
        }
        return Failed(errno, absl::StrCat("writing ", path_, " after ", written_, " bytes"));
      }
      written_ += written;
      bytes.remove_prefix(written);
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    if (::fsync(descriptor_) != 0)
      return Failed(errno, absl::StrCat("fsync of ", path_, " (", written_, " bytes)"));
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const int descriptor_;
  uint64_t written_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WritableFile>> OpenPosixFile(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0) return Failed(errno, absl::StrCat("creating ", path));
  return std::make_unique<PosixWritableFile>(path, descriptor);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> ReadableFile::Open(const std::string& path) {
  // Without O_NONBLOCK the opening of a pipe would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return Failed(errno, absl::StrCat("opening ", path));
  return Of(path, descriptor);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> ReadableFile::OpenBelow(const std::string& directory,
                                                                      const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(const int descriptor, OpenFileBeneath(directory, name));
  return Of(absl::StrCat(directory, "/", name), descriptor);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> ReadableFile::Of(std::string path, int descriptor) {
  struct stat info;
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return std::unique_ptr<ReadableFile>(new ReadableFile(std::move(path), descriptor, info.st_size));
}

ReadableFile::~ReadableFile() { ::close(descriptor_); }

absl::Status ReadableFile::Read(uint64_t offset, size_t bytes, char* out) const {
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, out, bytes, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Failed(errno, absl::StrCat("reading ", path_, " at byte ", offset));
    }
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends at byte ", offset, ": ", bytes, " more were expected"));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadableFile::ReadAll(uint64_t max_bytes) const {
  if (size_ > max_bytes) {
    return absl::OutOfRangeError(
        absl::StrCat(path_, " has ", size_, " bytes, and at most ", max_bytes, " are read"));
  }
  std::string bytes(size_, '\0');
  TANDEM_RETURN_IF_ERROR(Read(0, bytes.size(), bytes.data()));
  return bytes;
}

bool IsPlainFileName(absl::string_view name) {
  constexpr size_t kLongest = 255;
  if (name.empty() || name.size() > kLongest || name == "." || name == "..") return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '/' || byte < ' ' || byte == 0x7f;
  });
}

absl::Status SyncDirectory(const std::string& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Failed(errno, absl::StrCat("opening directory ", directory));
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems cannot sync a directory. Their renames cannot be made more durable.
  if (error != 0 && error != EINVAL) return Failed(error, absl::StrCat("fsync of directory ", directory));
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes, const OpenFile& open) {
  const std::string unfinished = absl::StrCat(path, ".tmp");
  const absl::Status status = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, open(unfinished));
    TANDEM_RETURN_IF_ERROR(file->Append(bytes));
    TANDEM_RETURN_IF_ERROR(file->Sync());
    if (::rename(unfinished.c_str(), path.c_str()) != 0)
      return Failed(errno, absl::StrCat("renaming ", unfinished));
    return absl::OkStatus();
  }();
  if (!status.ok()) ::unlink(unfinished.c_str());
  return status;
}

uint32_t Crc32(absl::string_view bytes, uint32_t crc) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

uint32_t Crc32Combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return static_cast<uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(second_bytes)));
}

absl::StatusOr<uint32_t> FileCrc32(const ReadableFile& file) {
  std::string chunk(std::min<uint64_t>(kChunk, file.size()), '\0');
  uint32_t crc = 0;
  for (uint64_t at = 0; at < file.size(); at += chunk.size()) {
    chunk.resize(std::min<uint64_t>(kChunk, file.size() - at));
    TANDEM_RETURN_IF_ERROR(file.Read(at, chunk.size(), chunk.data()));
    crc = Crc32(chunk, crc);
  }
  return crc;
}

}  // namespace tandem
