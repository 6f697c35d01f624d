// SPDX-License-Identifier: Apache-2.0
#include "ps/log/log_reader.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kLongestStart = size_t{1} << 12;
constexpr uint64_t kWholeFile = std::numeric_limits<uint64_t>::max();

// Looks for undamaged records at any place of a file. Bytes that look like the beginning of a record cost the
// checksum of as many bytes as they say: a file that consists of them would take a time that grows with the
// square of its size.
class RecordSearch {
 public:
  RecordSearch(absl::string_view data, size_t offset)
      : data_(data), offset_(offset), budget_(kPasses * data.size()) {}

  // Returns the next record, or nullopt behind the last one, or if the file has too many false ones.
  std::optional<Record> Next() {
    for (; offset_ + kRecordHeaderBytes <= data_.size(); offset_ += 8) {
      const uint64_t cost = RecordCost(data_, offset_);
      if (cost > budget_) {
        gave_up_ = true;
        return std::nullopt;
      }
      budget_ -= cost;
      const std::optional<Record> record = ParseRecord(data_, offset_);
      if (!record.has_value()) continue;
      offset_ += 8;
      return record;
    }
    return std::nullopt;
  }
  bool gave_up() const { return gave_up_; }

 private:
  // The records of a file are read once, and a few more may lie in the bodies of others.
  static constexpr uint64_t kPasses = 16;
  const absl::string_view data_;
  size_t offset_;
  uint64_t budget_;
  bool gave_up_ = false;
};

// Returns whether a record behind `offset` says that the record `position` was safe. True also if the file
// has too many false records to know it.
bool LaterRecordVouchesFor(uint64_t position, absl::string_view data, size_t offset) {
  RecordSearch search(data, offset);
  while (const std::optional<Record> record = search.Next()) {
    if (record->position > position && record->durable >= position) return true;
  }
  return search.gave_up();
}

// Returns whether an undamaged record lies anywhere in the file. True also if it has too many false ones to
// know it.
absl::StatusOr<bool> HasRecords(FileSystem& files, const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string data, files.Read(path, 0, kWholeFile));
  RecordSearch search(data, 0);
  return search.Next().has_value() || search.gave_up();
}

absl::Status Missing(const LogSegment& segment, uint64_t position) {
  return absl::DataLossError(absl::StrCat(segment.path, " begins with record ",
                                          segment.header.first_position(), ", but record ", position,
                                          " should come next: a file of the log is missing"));
}

}  // namespace

absl::StatusOr<LogSegments> ListSegments(FileSystem& files, const std::string& directory, bool accept_loss) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(directory));
  std::erase_if(names, [](const std::string& name) { return !TermOfSegment(name).has_value(); });
  // The names order by first position, then by term.
  std::sort(names.begin(), names.end());
  LogSegments found;
  for (const std::string& name : names) {
    found.term = std::max(found.term, *TermOfSegment(name));
    if (!found.lost.empty()) {
      found.lost.push_back(absl::StrCat(directory, "/", name));
      continue;
    }
    LogSegment segment{.path = absl::StrCat(directory, "/", name)};
    TANDEM_ASSIGN_OR_RETURN(const std::string start, files.Read(segment.path, 0, kLongestStart));
    const std::optional<v1::LogSegmentHeader> header = ParseSegmentStart(start, &segment.records);
    if (!header.has_value()) {
      const bool last = name == names.back();
      if (last) {
        TANDEM_ASSIGN_OR_RETURN(const bool records, HasRecords(files, segment.path));
        if (!records) {
          found.unfinished.push_back(segment.path);
          break;
        }
      }
      const std::string damage =
          absl::StrCat(segment.path, ": the beginning of this segment of the log is damaged, and ",
                       last ? "it has records" : "later segments exist");
      if (!accept_loss) {
        return absl::DataLossError(
            absl::StrCat(damage, ": restore the file, or lose what follows with --accept-loss"));
      }
      LogWarning(absl::StrCat(damage, "; it and all later ones are lost (--accept-loss)"));
      found.lost.push_back(segment.path);
      continue;
    }
    if (header->format_version() > kLogFormatVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          segment.path, " has format ", header->format_version(), ", and this version of Tandem reads up to ",
          kLogFormatVersion, ": start the server with the version that wrote it"));
    }
    segment.header = *header;
    found.segments.push_back(std::move(segment));
  }
  return found;
}

absl::StatusOr<LogEnd> ReadLog(FileSystem& files, const std::vector<LogSegment>& segments, uint64_t after,
                               bool accept_loss, absl::FunctionRef<absl::Status(const Record&)> visit) {
  LogEnd end{.position = after};
  // The segments before the one with record `after` + 1 do not matter: of those that a snapshot has made
  // superfluous, some may be left.
  size_t begin = segments.size();
  while (begin > 0 && segments[begin - 1].header.first_position() > after + 1) --begin;
  if (begin > 0) {
    --begin;
  } else if (!segments.empty()) {
    const absl::Status missing = Missing(segments.front(), after + 1);
    if (!accept_loss) return missing;
    LogWarning(absl::StrCat(missing.message(), "; everything behind it is lost (--accept-loss)"));
    for (const LogSegment& segment : segments) end.behind.push_back(segment.path);
    return end;
  }
  uint64_t next = segments.empty() ? 0 : segments[begin].header.first_position();
  for (size_t i = begin; i < segments.size(); ++i) {
    const LogSegment& segment = segments[i];
    const bool last = i + 1 == segments.size();
    const uint64_t limit =
        last ? std::numeric_limits<uint64_t>::max() : segments[i + 1].header.first_position();
    if (segment.header.first_position() != next) {
      const absl::Status missing = Missing(segment, next);
      if (!accept_loss) return missing;
      LogWarning(absl::StrCat(missing.message(), "; everything behind it is lost (--accept-loss)"));
      for (size_t j = i; j < segments.size(); ++j) end.behind.push_back(segments[j].path);
      break;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::string data, files.Read(segment.path, 0, kWholeFile));
    size_t offset = segment.records;
    bool over = false;
    while (next < limit) {
      const std::optional<Record> record = ParseRecord(data, offset);
      if (!record.has_value() || record->position != next) {
        const bool damaged = !last || LaterRecordVouchesFor(next, data, offset);
        if (damaged && !accept_loss) {
          return absl::DataLossError(absl::StrCat(
              segment.path, ": record ", next, " at byte ", offset,
              " is damaged, and later ones show that it was acknowledged: restore the file, or lose what "
              "follows with --accept-loss"));
        }
        if (damaged) {
          LogWarning(absl::StrCat(segment.path, ": record ", next, " at byte ", offset,
                                  " is damaged; it and all later ones are lost (--accept-loss)"));
        }
        over = true;
        break;
      }
      if (next > after) {
        TANDEM_RETURN_IF_ERROR(visit(*record));
        end.position = next;
        end.bytes += record->bytes;
        ++end.records;
      }
      ++next;
      offset += record->bytes;
    }
    if (over && !last) {
      for (size_t j = i + 1; j < segments.size(); ++j) end.behind.push_back(segments[j].path);
      break;
    }
  }
  return end;
}

}  // namespace tandem::ps
