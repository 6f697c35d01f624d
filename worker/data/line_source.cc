// SPDX-License-Identifier: Apache-2.0
#include "worker/data/line_source.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::worker {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// Returns the line that begins at `begin` and stores in `*next` where the following line begins.
absl::string_view TakeLine(const char* begin, const char* end, const char** next) {
  const char* stop = static_cast<const char*>(std::memchr(begin, '\n', end - begin));
  if (stop == nullptr) {
    stop = end;
    *next = end;
  } else {
    *next = stop + 1;
  }
  if (stop > begin && stop[-1] == '\r') --stop;
  return absl::string_view(begin, stop - begin);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineSource>> LineSource::Open(const std::vector<std::string>& paths,
                                                             const Options& options) {
  if (paths.empty()) return absl::InvalidArgumentError("no data files are given");
  std::unique_ptr<LineSource> source(new LineSource);
  source->options_ = options;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<FoundFile> files, FindFiles(paths));
  for (size_t f = 0; f < files.size(); ++f) {
    const size_t before = source->files_.size();
    TANDEM_RETURN_IF_ERROR(source->Map(files[f]));
    // All files of a pattern are neighbours.
    const std::string& pattern = files[f].pattern;
    if (pattern.empty() || source->files_.size() > before) continue;
    const bool is_last = f + 1 == files.size() || files[f + 1].pattern != pattern;
    const bool has_lines = before > 0 && source->files_.back().pattern == pattern;
    if (is_last && !has_lines) {
      return absl::InvalidArgumentError(absl::StrCat("data files '", pattern, "': all of them are empty"));
    }
  }
  if (source->headers_.empty()) source->headers_.emplace_back();
  return source;
}

LineSource::~LineSource() {
  for (const File& file : files_) {
    if (file.data != nullptr) munmap(const_cast<char*>(file.data), file.size);
    if (file.fd >= 0) close(file.fd);
  }
}

absl::Status LineSource::Map(const FoundFile& found) {
  const uint64_t base = bytes();
  const std::string& path = found.path;
  TANDEM_ASSIGN_OR_RETURN(const OpenedFile opened, OpenDataFile(path));
  if (opened.bytes == 0) {
    close(opened.fd);
    if (!found.pattern.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("data file '", path, "' is empty (0 bytes)"));
  }
  File& file = files_.emplace_back();  // the destructor closes what is open, also after an error below
  file.path = path;
  file.pattern = found.pattern;
  file.base = base;
  file.fd = opened.fd;
  void* data = mmap(nullptr, opened.bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("data file '", path, "' cannot be mapped"));
  }
  file.data = static_cast<const char*>(data);
  file.size = opened.bytes;
  if (absl::StartsWith(absl::string_view(file.data, file.size), kByteOrderMark)) {
    file.first_line = kByteOrderMark.size();
  }
  return options_.header ? ReadHeader(&file) : absl::OkStatus();
}

absl::Status LineSource::ReadHeader(File* file) {
  const char* next = nullptr;
  const absl::string_view header = TakeLine(file->data + file->first_line, file->data + file->size, &next);
  file->first_line = next - file->data;
  if (header.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data file '", file->path, "': the first line, which should name the columns, is empty"));
  }
  const auto known =
      std::find_if(headers_.begin(), headers_.end(), [&](const Header& one) { return one.line == header; });
  file->header = known - headers_.begin();
  if (known == headers_.end()) headers_.push_back({header, file->path});
  return absl::OkStatus();
}

uint64_t LineSource::bytes() const { return files_.empty() ? 0 : files_.back().base + files_.back().size; }

const LineSource::File& LineSource::FileOf(uint64_t position) const {
  if (files_.size() == 1) return files_[0];
  auto after = std::upper_bound(files_.begin(), files_.end(), position,
                                [](uint64_t p, const File& file) { return p < file.base; });
  return *(after - 1);
}

absl::string_view LineSource::LineAt(uint64_t position) const {
  size_t header = 0;
  return LineAt(position, &header);
}

absl::string_view LineSource::LineAt(uint64_t position, size_t* header) const {
  const File& file = FileOf(position);
  *header = file.header;
  const char* next = nullptr;
  return TakeLine(file.data + (position - file.base), file.data + file.size, &next);
}

std::string LineSource::Describe(uint64_t position) const {
  const File& file = FileOf(position);
  const auto lines_before = std::count(file.data, file.data + (position - file.base), '\n');
  return absl::StrCat(file.path, ":", lines_before + 1);
}

absl::Status LineSource::CheckUnchanged() const {
  for (const File& file : files_) {
    struct stat info = {};
    if (fstat(file.fd, &info) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("data file '", file.path, "' cannot be examined"));
    }
    if (static_cast<uint64_t>(info.st_size) < file.size) {
      return absl::DataLossError(absl::StrCat("data file '", file.path, "' was cut from ", file.size, " to ",
                                              info.st_size,
                                              " bytes while it was being read; write a new file "
                                              "and rename it instead of changing one in use"));
    }
  }
  return absl::OkStatus();
}

bool LineSource::Cursor::Next(uint64_t* position, absl::string_view* line) {
  while (true) {
    if (at_ == end_) {
      if (file_ == source_->files_.size()) return false;
      const File& file = source_->files_[file_++];
      base_ = file.base;
      begin_ = file.data;
      at_ = file.data + file.first_line;
      end_ = file.data + file.size;
      continue;
    }
    const char* begin = at_;
    const absl::string_view text = TakeLine(begin, end_, &at_);
    if (text.empty() || (source_->options_.comments && text[0] == '#')) continue;
    *position = base_ + (begin - begin_);
    *line = text;
    return true;
  }
}

}  // namespace tandem::worker
