// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/format.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/policies/admission.h"
#include "ps/shard_map.h"
#include "ps/storage/row_codec.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian and written as memory lies");

constexpr size_t kBuffer = size_t{1} << 20;
constexpr uint64_t kTrailer = 4 + 4 + 8;  // G, H, I
// No optimizer has more floats of state for each value of a row, and no job more buckets.
constexpr uint64_t kMostFloatsPerValue = 16;
constexpr uint32_t kMostBuckets = uint32_t{1} << 20;
// Of one bucket's admission counters. Those of a file with a base are larger than its part of the file.
constexpr uint64_t kMostFilterBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxMetadata = uint64_t{64} << 20;  // of header and footer; real ones are far smaller

std::string U32(uint32_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); }
uint32_t ReadU32(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Collects rows into large writes. After the first error all further writes are skipped and status() stays.
class RowWriter {
 public:
  explicit RowWriter(WritableFile* file) : file_(file) { buffer_.reserve(kBuffer); }
  void Add(const void* bytes, size_t size) {
    if (size == 0) return;
    if (buffer_.size() + size > kBuffer) Flush();
    buffer_.append(static_cast<const char*>(bytes), size);
    offset_ += size;
  }
  void Add(absl::string_view bytes) { Add(bytes.data(), bytes.size()); }
  void BeginCrc() { EndCrc(); }
  // Returns the CRC-32 of all bytes since the last BeginCrc or EndCrc.
  uint32_t EndCrc() {
    Flush();
    const uint32_t crc = crc_;
    file_crc_ = Crc32Combine(file_crc_, crc, section_bytes_);
    crc_ = 0;
    section_bytes_ = 0;
    return crc;
  }
  absl::Status Finish() {
    EndCrc();
    return status_;
  }
  uint32_t file_crc() const { return file_crc_; }  // of all bytes, once Finish has returned
  const absl::Status& status() const { return status_; }
  uint64_t offset() const { return offset_; }

 private:
  void Flush() {
    crc_ = Crc32(buffer_, crc_);
    section_bytes_ += buffer_.size();
    if (status_.ok() && !buffer_.empty()) status_ = file_->Append(buffer_);
    buffer_.clear();
  }
  WritableFile* const file_;
  std::string buffer_;
  uint64_t offset_ = 0;
  uint32_t crc_ = 0;            // of the bytes since the last BeginCrc or EndCrc
  uint64_t section_bytes_ = 0;  // their number, without those in buffer_
  uint32_t file_crc_ = 0;       // of the bytes before them
  absl::Status status_;
};

absl::Status WriteContents(const v1::TableFileHeader& header, absl::Span<const uint32_t> buckets,
                           BucketSource source, const std::atomic<bool>& cancel, WritableFile* file,
                           TableFileSummary* summary) {
  const std::string header_bytes = header.SerializeAsString();
  const absl::string_view magic = header.has_base() ? kDeltaFileMagic : kTableFileMagic;
  const std::string start = absl::StrCat(magic, U32(header_bytes.size()), header_bytes);
  RowWriter out(file);
  out.Add(start);
  out.Add(U32(Crc32(start)));
  v1::TableFileFooter footer;
  const size_t dim = header.config().dim();
  const DType dtype = RowTypeOf(header.config());
  std::string packed(dim * SizeOf(dtype), '\0');
  char* const packed_data = packed.data();
  for (const uint32_t bucket : buckets) {
    v1::BucketIndex* index = footer.add_buckets();
    index->set_bucket(bucket);
    index->set_offset(out.offset());
    out.BeginCrc();
    uint64_t rows = 0;
    const auto write = [&](uint64_t id, const float* row, const RowHistory& history) {
      out.Add(&id, sizeof(id));
      out.Add(&history.version, sizeof(history.version));
      out.Add(&history.count, sizeof(history.count));
      StoreRows(dtype, absl::MakeConstSpan(&packed_data, 1), dim, row, nullptr);
      out.Add(packed);
      out.Add(row + dim, (header.row_floats() - dim) * sizeof(float));
      ++rows;
    };
    TANDEM_ASSIGN_OR_RETURN(const BucketChanges changes, source(bucket, write));
    out.Add(changes.filter);
    index->set_filter_bytes(changes.filter.size());
    if (header.has_base()) {
      index->set_whole(changes.whole);
      index->set_all_filter_bytes(changes.filter_bytes);
      index->set_removed(changes.removed.size());
      out.Add(changes.removed.data(), changes.removed.size() * sizeof(uint64_t));
    } else {
      TANDEM_CHECK(changes.whole);
    }
    index->set_crc32(out.EndCrc());
    index->set_rows(rows);
    index->set_bytes(out.offset() - index->offset());
    TANDEM_RETURN_IF_ERROR(out.status());
    if (cancel) return absl::CancelledError("the checkpoint was abandoned: the server is stopping");
  }
  const std::string footer_bytes = footer.SerializeAsString();
  const std::string end = absl::StrCat(footer_bytes, U32(footer_bytes.size()));
  out.Add(end);
  summary->footer_crc32 = Crc32(end);
  out.Add(U32(summary->footer_crc32));
  out.Add(magic);
  TANDEM_RETURN_IF_ERROR(out.Finish());
  summary->bytes = out.offset();
  summary->crc32 = out.file_crc();
  return file->Sync();
}

}  // namespace

std::string TableFileName(absl::string_view table, uint32_t server_index, uint32_t num_servers) {
  return absl::StrCat(table, ".", server_index, "-of-", num_servers, kTableFileSuffix);
}

absl::StatusOr<TableFileSummary> WriteTableFile(const std::string& path, const v1::TableFileHeader& header,
                                                absl::Span<const uint32_t> buckets, TableStorage& storage,
                                                const std::atomic<bool>& cancel, const OpenFile& open) {
  const auto source = [&](uint32_t bucket, TableStorage::RowVisitor visit) {
    return header.has_base() ? storage.VisitChanges(bucket, visit)
                             : storage.TableStorage::VisitChanges(bucket, visit);
  };
  return WriteTableFile(path, header, buckets, source, cancel, open);
}

absl::StatusOr<TableFileSummary> WriteTableFile(const std::string& path, const v1::TableFileHeader& header,
                                                absl::Span<const uint32_t> buckets, BucketSource source,
                                                const std::atomic<bool>& cancel, const OpenFile& open) {
  const std::string unfinished = absl::StrCat(path, ".tmp");
  TableFileSummary summary;
  const absl::Status status = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, open(unfinished));
    TANDEM_RETURN_IF_ERROR(WriteContents(header, buckets, source, cancel, file.get(), &summary));
    if (::rename(unfinished.c_str(), path.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", unfinished));
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    ::unlink(unfinished.c_str());
    return status;
  }
  return summary;
}

absl::StatusOr<std::unique_ptr<TableFileReader>> TableFileReader::Open(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return OpenBelow(".", path);
  return OpenBelow(path.substr(0, slash), path.substr(slash + 1));
}

absl::StatusOr<std::unique_ptr<TableFileReader>> TableFileReader::OpenBelow(const std::string& directory,
                                                                            const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, ReadableFile::OpenBelow(directory, name));
  std::unique_ptr<TableFileReader> reader(new TableFileReader(std::move(file)));
  uint64_t rows_begin = 0;
  TANDEM_RETURN_IF_ERROR(reader->ReadHeader(&rows_begin));
  TANDEM_RETURN_IF_ERROR(reader->ReadFooter(rows_begin));
  return reader;
}

absl::Status TableFileReader::Corrupt(uint64_t offset, absl::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path(), " is damaged at byte ", offset, " of ", file_->size(), ": ", what));
}

absl::Status TableFileReader::ReadHeader(uint64_t* rows_begin) {
  const uint64_t fixed = kTableFileMagic.size() + sizeof(uint32_t);
  if (file_->size() < fixed + sizeof(uint32_t) + kTrailer)
    return Corrupt(file_->size(), "too short for a table file");
  std::string start(fixed, '\0');
  TANDEM_RETURN_IF_ERROR(file_->Read(0, fixed, start.data()));
  if (absl::StartsWith(start, kOldTableFileMagic)) {
    magic_ = kOldTableFileMagic;
  } else if (absl::StartsWith(start, kDeltaFileMagic)) {
    magic_ = kDeltaFileMagic;
  } else if (!absl::StartsWith(start, kTableFileMagic)) {
    if (absl::StartsWith(start, kTableFileMagic.substr(0, 7))) {
      return absl::FailedPreconditionError(absl::StrCat(path(), " is of format version '", start.substr(7, 1),
                                                        "', this program reads versions '1' to '",
                                                        kDeltaFileMagic.substr(7), "'"));
    }
    return Corrupt(0, "not a table file: it does not begin with TANDEMT2");
  }
  const uint64_t header_bytes = ReadU32(start.data() + kTableFileMagic.size());
  if (header_bytes > kMaxMetadata || fixed + header_bytes + sizeof(uint32_t) + kTrailer > file_->size()) {
    return Corrupt(8, absl::StrCat("a header of ", header_bytes, " bytes does not fit"));
  }
  start.resize(fixed + header_bytes + sizeof(uint32_t));
  TANDEM_RETURN_IF_ERROR(file_->Read(0, start.size(), start.data()));
  const absl::string_view covered = absl::string_view(start).substr(0, fixed + header_bytes);
  if (Crc32(covered) != ReadU32(start.data() + covered.size()))
    return Corrupt(covered.size(), "the header's CRC is wrong");
  if (!header_.ParseFromArray(start.data() + fixed, static_cast<int>(header_bytes))) {
    return Corrupt(fixed, "the header does not parse");
  }
  TANDEM_RETURN_IF_ERROR(Annotate(ValidateTableConfig(header_.config()), path()));
  const uint64_t dim = header_.config().dim();
  if (header_.row_floats() > kMostFloatsPerValue * (dim + 1) || header_.num_buckets() > kMostBuckets) {
    return Corrupt(fixed, absl::StrCat("it says that rows of ", dim, " values have ", header_.row_floats(),
                                       " floats, in ", header_.num_buckets(), " buckets"));
  }
  if (header_.server_index() >= header_.num_servers() || !absl::has_single_bit(header_.num_buckets()) ||
      header_.row_floats() < header_.config().dim() ||
      header_.worker_clock_size() != static_cast<int64_t>(header_.config().num_workers()) ||
      header_.has_base() != (magic_ == kDeltaFileMagic)) {
    return Corrupt(fixed, "the header contradicts itself");
  }
  *rows_begin = start.size();
  return absl::OkStatus();
}

absl::Status TableFileReader::ReadFooter(uint64_t rows_begin) {
  char trailer[kTrailer];
  const uint64_t trailer_at = file_->size() - kTrailer;
  TANDEM_RETURN_IF_ERROR(file_->Read(trailer_at, kTrailer, trailer));
  if (absl::string_view(trailer + 8, 8) != magic_) {
    return Corrupt(trailer_at + 8, absl::StrCat("it does not end with ", magic_, ": the file was cut off"));
  }
  const uint64_t footer_bytes = ReadU32(trailer);
  if (footer_bytes > kMaxMetadata || footer_bytes > trailer_at - rows_begin) {
    return Corrupt(trailer_at, absl::StrCat("a footer of ", footer_bytes, " bytes does not fit"));
  }
  const uint64_t footer_at = trailer_at - footer_bytes;
  std::string end(footer_bytes + sizeof(uint32_t), '\0');
  TANDEM_RETURN_IF_ERROR(file_->Read(footer_at, end.size(), end.data()));
  footer_crc32_ = ReadU32(trailer + 4);
  if (Crc32(end) != footer_crc32_) return Corrupt(trailer_at + 4, "the footer's CRC is wrong");
  if (!footer_.ParseFromArray(end.data(), static_cast<int>(footer_bytes))) {
    return Corrupt(footer_at, "the footer does not parse");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Admission> admission,
                          MakeAdmission(header_.config().admission()));
  const uint64_t filter_bytes = admission->counter_bytes(header_.num_buckets());
  if (header_.has_base() && filter_bytes > kMostFilterBytes) {
    return Corrupt(rows_begin,
                   absl::StrCat("a bucket would have ", filter_bytes, " bytes of admission counters"));
  }
  uint64_t at = rows_begin;
  std::vector<bool> seen(header_.num_buckets());
  for (const v1::BucketIndex& bucket : footer_.buckets()) {
    if (bucket.offset() != at || bucket.bytes() > footer_at - at || bucket.filter_bytes() > bucket.bytes() ||
        (bucket.all_filter_bytes() != 0 && bucket.all_filter_bytes() != filter_bytes) ||
        bucket.removed() > (bucket.bytes() - bucket.filter_bytes()) / sizeof(uint64_t) ||
        (!header_.has_base() && bucket.removed() != 0) || rows_bytes(bucket) % row_bytes() != 0 ||
        rows_bytes(bucket) / row_bytes() != bucket.rows() || bucket.bucket() >= header_.num_buckets() ||
        seen[bucket.bucket()]) {
      return Corrupt(footer_at,
                     absl::StrCat("the footer's entry of bucket ", bucket.bucket(), " makes no sense"));
    }
    seen[bucket.bucket()] = true;
    at += bucket.bytes();
  }
  if (at != footer_at) return Corrupt(at, "bytes that belong to no bucket");
  return absl::OkStatus();
}

absl::Status TableFileReader::ReadBucket(const v1::BucketIndex& bucket, TableStorage::RowVisitor visit,
                                         std::string* filter) {
  if (header_.has_base()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path(), " holds only what has changed since ", header_.base().checkpoint()));
  }
  TANDEM_ASSIGN_OR_RETURN(BucketChanges changes, ReadChanges(bucket, visit));
  if (filter != nullptr) *filter = std::move(changes.filter);
  return absl::OkStatus();
}

absl::StatusOr<BucketChanges> TableFileReader::ReadChanges(const v1::BucketIndex& bucket,
                                                           TableStorage::RowVisitor visit) {
  const uint64_t rows_a_read = std::max<uint64_t>(1, kBuffer / row_bytes());
  const size_t dim = header_.config().dim();
  std::string buffer;
  std::vector<float> row(header_.row_floats());
  uint32_t crc = 0;
  uint64_t previous = 0;
  for (uint64_t done = 0; done < bucket.rows();) {
    const uint64_t count = std::min(rows_a_read, bucket.rows() - done);
    const uint64_t at = bucket.offset() + done * row_bytes();
    buffer.resize(count * row_bytes());
    TANDEM_RETURN_IF_ERROR(file_->Read(at, buffer.size(), buffer.data()));
    crc = Crc32(buffer, crc);
    for (uint64_t i = 0; i < count; ++i) {
      const char* from = buffer.data() + i * row_bytes();
      uint64_t id;
      std::memcpy(&id, from, sizeof(id));
      from += sizeof(id);
      if (BucketOf(id, header_.num_buckets()) != bucket.bucket() || (done + i > 0 && id <= previous)) {
        return Corrupt(at + i * row_bytes(),
                       absl::StrCat("id ", id, " is out of place in bucket ", bucket.bucket()));
      }
      previous = id;
      RowHistory history{static_cast<uint32_t>(header_.version()), 1};
      if (!old()) {
        std::memcpy(&history.version, from, sizeof(history.version));
        std::memcpy(&history.count, from + sizeof(history.version), sizeof(history.count));
      }
      from += history_bytes();
      LoadRows(dtype(), absl::MakeConstSpan(&from, 1), dim, row.data());
      from += dim * SizeOf(dtype());
      std::memcpy(row.data() + dim, from, (row.size() - dim) * sizeof(float));
      visit(id, row.data(), history);
    }
    done += count;
  }
  BucketChanges changes{.whole = !header_.has_base() || bucket.whole()};
  changes.filter.resize(bucket.filter_bytes());
  changes.filter_bytes = changes.whole ? bucket.filter_bytes() : bucket.all_filter_bytes();
  changes.removed.resize(bucket.removed());
  const uint64_t filter_at = bucket.offset() + rows_bytes(bucket);
  TANDEM_RETURN_IF_ERROR(file_->Read(filter_at, changes.filter.size(), changes.filter.data()));
  crc = Crc32(changes.filter, crc);
  auto* const removed = reinterpret_cast<char*>(changes.removed.data());
  const size_t removed_bytes = changes.removed.size() * sizeof(uint64_t);
  TANDEM_RETURN_IF_ERROR(file_->Read(filter_at + bucket.filter_bytes(), removed_bytes, removed));
  if (removed_bytes > 0) crc = Crc32({removed, removed_bytes}, crc);
  if (crc != bucket.crc32()) {
    return Corrupt(bucket.offset(), absl::StrCat("the CRC of bucket ", bucket.bucket(), " is wrong"));
  }
  return changes;
}

}  // namespace tandem::ps
