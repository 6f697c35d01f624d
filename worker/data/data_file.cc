// SPDX-License-Identifier: Apache-2.0
#include "worker/data/data_file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

constexpr size_t kHeadBytes = 4096;  // read to recognise the kind of a file
constexpr size_t kChunkBytes = 1 << 18;
constexpr absl::string_view kGzip("\x1f\x8b\x08", 3);

// A format that is recognised by its first bytes, and what to do about it.
struct KnownFormat {
  absl::string_view magic;
  absl::string_view name;
  absl::string_view remedy;
};

constexpr absl::string_view kUnpack = "unpack it first";
constexpr absl::string_view kConvert = "export it as CSV first";
const KnownFormat kFormats[] = {
    {absl::string_view("\xff\xfe\0\0", 4), "text in UTF-32", "convert it to UTF-8, for example with iconv"},
    {absl::string_view("\0\0\xfe\xff", 4), "text in UTF-32", "convert it to UTF-8, for example with iconv"},
    {"\xff\xfe", "text in UTF-16", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", "text in UTF-16", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first (zstd -d), or compress it with gzip"},
    {"BZh", "compressed by bzip2", "unpack it first (bunzip2), or compress it with gzip"},
    {absl::string_view("\xfd"
                       "7zXZ\0",
                       6),
     "compressed by xz", "unpack it first (unxz), or compress it with gzip"},
    {"\x04\x22\x4d\x18", "compressed by lz4", "unpack it first (lz4 -d), or compress it with gzip"},
    {"PK\x03\x04", "a zip archive", kUnpack},
    {"7z\xbc\xaf\x27\x1c", "a 7z archive", kUnpack},
    {"PAR1", "a Parquet file", kConvert},
    {"ARROW1", "an Arrow file", kConvert},
    {"Obj\x01", "an Avro file", kConvert},
    {"\x89HDF\r\n", "an HDF5 file", kConvert},
    {"\x93NUMPY", "a NumPy array", kConvert},
    {"SQLite format 3", "an SQLite database", kConvert},
};

bool IsPattern(absl::string_view path) { return path.find_first_of("*?[") != absl::string_view::npos; }

// Returns whether a wildcard of `pattern` stands for the beginning of a hidden name in `path`.
bool MatchesHidden(absl::string_view pattern, absl::string_view path) {
  const std::vector<absl::string_view> wanted = absl::StrSplit(pattern, '/', absl::SkipEmpty());
  const std::vector<absl::string_view> found = absl::StrSplit(path, '/', absl::SkipEmpty());
  for (size_t i = 0; i < std::min(wanted.size(), found.size()); ++i) {
    if ((found[i][0] == '_' || found[i][0] == '.') && wanted[i].find_first_of("*?[") == 0) return true;
  }
  return false;
}

// A control character that no text has. Tabs, line ends, \x01 to \x03 (fields of Hive) and \x1b to \x1f
// (separators) are in use.
bool IsBinary(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  return byte == 0 || (byte >= 0x04 && byte <= 0x08) || (byte >= 0x0e && byte <= 0x1a);
}

// Returns what is wrong with the folder of a missing file, for messages: the first one on the way that does
// not exist, or that it is empty. A container engine makes an empty folder if the one to mount is missing.
// "": the folder has other files.
std::string FolderHint(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  if (error) return "";
  if (std::filesystem::is_directory(folder, error)) {
    if (!std::filesystem::is_empty(folder, error) || error) return "";
    return absl::StrCat("; the folder '", folder.string(),
                        "' is empty: if it is mounted, is the folder of the host the right one?");
  }
  while (folder.has_relative_path() && !std::filesystem::exists(folder.parent_path(), error) && !error) {
    folder = folder.parent_path();
  }
  if (error || std::filesystem::exists(folder, error)) return "";
  return absl::StrCat("; there is no folder '", folder.string(), "': is it to be mounted?");
}

absl::Status CannotOpen(const std::string& path, int error) {
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::StrCat("data file '", path, "' cannot be opened"));
  return error == ENOENT ? absl::Status(status.code(), absl::StrCat(status.message(), FolderHint(path)))
                         : status;
}

absl::Status CheckRegular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return absl::OkStatus();
  const std::string what = absl::StrCat("data file '", path, "' is not a regular file but ");
  if (S_ISDIR(mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "a directory; name its files, for example '", path, "/*.csv'"));
  }
  const char* kind = S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
  return absl::InvalidArgumentError(
      absl::StrCat(what, kind, ", which can be read only once; write its content to a file"));
}

// Returns a file without a name. /var/tmp is on a disk where /tmp may be memory.
absl::StatusOr<int> AnonymousFile() {
  const char* const chosen = std::getenv("TMPDIR");
  std::vector<std::string> directories = {"/var/tmp", "/tmp"};
  if (chosen != nullptr && *chosen != '\0') directories = {chosen};
  std::string name;
  int error = 0;
  for (const std::string& directory : directories) {
    name = absl::StrCat(directory, "/tandem-unpacked-XXXXXX");
    const int fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) {
      ::unlink(name.c_str());
      return fd;
    }
    error = errno;
  }
  return absl::ErrnoToStatus(
      error, absl::StrCat("cannot make the temporary file '", name, "' (TMPDIR chooses another directory)"));
}

absl::Status WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::ErrnoToStatus(
          errno,
          "its unpacked content cannot be written to the directory for temporary files "
          "(TMPDIR chooses another)");
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

// Unpacks gzip data, which may consist of several members one behind the other, from `from` to `to`. Returns
// the number of unpacked bytes.
absl::StatusOr<uint64_t> Gunzip(int from, int to) {
  z_stream stream = {};
  constexpr int kGzipOnly = 16;
  if (inflateInit2(&stream, MAX_WBITS + kGzipOnly) != Z_OK) {
    return absl::ResourceExhaustedError("there is no memory to unpack it");
  }
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  const auto packed = std::make_unique<char[]>(kChunkBytes), plain = std::make_unique<char[]>(kChunkBytes);
  uint64_t bytes = 0, read = 0;
  bool in_member = true;  // the file begins with one
  const auto damaged = [&](absl::string_view how) {
    return absl::DataLossError(absl::StrCat("its compressed data ", how, " at byte ", read - stream.avail_in,
                                            ", after ", bytes, " unpacked bytes"));
  };
  while (true) {
    if (stream.avail_in == 0) {
      const ssize_t size = ::read(from, packed.get(), kChunkBytes);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return absl::ErrnoToStatus(errno, "it cannot be read");
      if (size == 0) {
        if (in_member) return damaged("ends too early");
        return bytes;
      }
      read += static_cast<uint64_t>(size);
      stream.next_in = reinterpret_cast<Bytef*>(packed.get());
      stream.avail_in = static_cast<uInt>(size);
    }
    if (!in_member) {
      if (stream.next_in[0] == 0) {  // padding after the last member, as tapes have it
        ++stream.next_in;
        --stream.avail_in;
        continue;
      }
      inflateReset(&stream);
      in_member = true;
    }
    stream.next_out = reinterpret_cast<Bytef*>(plain.get());
    stream.avail_out = kChunkBytes;
    const int result = inflate(&stream, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return damaged(absl::StrCat("is damaged (", stream.msg != nullptr ? stream.msg : "zlib error", ")"));
    }
    const size_t size = kChunkBytes - stream.avail_out;
    TANDEM_RETURN_IF_ERROR(WriteAll(to, plain.get(), size));
    bytes += size;
    in_member = result != Z_STREAM_END;
  }
}

// Reads the beginning of a file. `fd` stays at its position.
absl::StatusOr<std::string> ReadHead(int fd) {
  std::string head(kHeadBytes, '\0');
  const ssize_t size = ::pread(fd, head.data(), head.size(), 0);
  if (size < 0) return absl::ErrnoToStatus(errno, "it cannot be read");
  head.resize(static_cast<size_t>(size));
  return head;
}

// Replaces a compressed file by its unpacked content.
absl::Status Unpack(OpenedFile* file) {
  TANDEM_ASSIGN_OR_RETURN(const int plain, AnonymousFile());
  absl::StatusOr<uint64_t> bytes = Gunzip(file->fd, plain);
  ::close(std::exchange(file->fd, plain));
  TANDEM_RETURN_IF_ERROR(bytes.status());
  file->bytes = *bytes;
  return absl::OkStatus();
}

absl::Status Open(const std::string& path, OpenedFile* file) {
  // Without O_NONBLOCK, opening a FIFO waits until another process writes to it.
  file->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  if (file->fd < 0 || ::fstat(file->fd, &info) != 0) {
    const int error = errno;
    if (::stat(path.c_str(), &info) == 0) TANDEM_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
    return CannotOpen(path, error);
  }
  TANDEM_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
  file->bytes = static_cast<uint64_t>(info.st_size);
  if (file->bytes == 0) return absl::OkStatus();
  const std::string named = absl::StrCat("data file '", path, "'");
  absl::StatusOr<std::string> head = ReadHead(file->fd);
  if (!head.ok()) return Annotate(head.status(), named);
  if (absl::StartsWith(*head, kGzip)) {
    TANDEM_RETURN_IF_ERROR(Annotate(Unpack(file), named));
    if (file->bytes == 0) return absl::OkStatus();
    head = ReadHead(file->fd);
    if (!head.ok()) return Annotate(head.status(), named);
  }
  return CheckText(path, *head);
}

}  // namespace

absl::StatusOr<std::vector<FoundFile>> FindFiles(const std::vector<std::string>& paths) {
  std::vector<FoundFile> files;
  for (const std::string& path : paths) {
    struct stat info = {};
    if (!IsPattern(path) || ::lstat(path.c_str(), &info) == 0) {
      files.push_back({.path = path});
      continue;
    }
    glob_t found = {};
    const absl::Cleanup release = [&found] { ::globfree(&found); };
    const int result = ::glob(path.c_str(), 0, nullptr, &found);
    if (result == GLOB_NOSPACE) return absl::ResourceExhaustedError("there is no memory for a list of files");
    const size_t before = files.size();
    for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
      if (!MatchesHidden(path, found.gl_pathv[i])) files.push_back({found.gl_pathv[i], path});
    }
    if (files.size() == before) {
      return absl::NotFoundError(
          absl::StrCat("data files '", path, "': no file has a name like this",
                       result == 0 ? " (names that begin with '_' or '.' are left out, as in Hadoop)" : "",
                       FolderHint(path)));
    }
  }
  return files;
}

absl::Status CheckText(absl::string_view path, absl::string_view bytes) {
  const auto refuse = [path](absl::string_view what, absl::string_view remedy) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file '", path, "' is not text in UTF-8 or ASCII: it is ", what, "; ", remedy));
  };
  for (const KnownFormat& format : kFormats) {
    if (absl::StartsWith(bytes, format.magic)) return refuse(format.name, format.remedy);
  }
  // UTF-16 without a mark at its beginning: most characters of a table are ASCII, so every other byte is 0.
  // A few such bytes are let pass: each is a part of the value that it stands in.
  constexpr size_t kFew = 8;
  const auto zeros = static_cast<size_t>(std::count(bytes.begin(), bytes.end(), '\0'));
  if (zeros > kFew && zeros * 5 > bytes.size() * 2 && zeros * 5 < bytes.size() * 3) {
    return refuse("text in UTF-16", "convert it to UTF-8: iconv -f UTF-16LE -t UTF-8");
  }
  const auto binary = static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), IsBinary));
  if (binary > kFew && binary * 25 > bytes.size()) {
    return refuse("binary data", "data files are CSV, TSV, Criteo, libsvm or libfm");
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedFile> OpenDataFile(const std::string& path) {
  OpenedFile file;
  const absl::Status opened = Open(path, &file);
  if (opened.ok()) return file;
  if (file.fd >= 0) ::close(file.fd);
  return opened;
}

}  // namespace tandem::worker
