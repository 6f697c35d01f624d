// SPDX-License-Identifier: Apache-2.0
#include "ps/snapshot/snapshot_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kPrefix = "snapshot-";
constexpr absl::string_view kUnfinished = ".tmp";
constexpr size_t kBuffer = size_t{4} << 20;       // bytes that are written at once
constexpr size_t kRecordRows = size_t{16} << 20;  // bytes of rows in a record
constexpr size_t kRowHeader = sizeof(uint64_t) + 2 * sizeof(uint32_t);

size_t RowBytes(uint32_t row_floats) { return kRowHeader + row_floats * sizeof(float); }

// Reads records from front to back.
class RecordReader {
 public:
  RecordReader(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  absl::Status ReadMagic() {
    TANDEM_RETURN_IF_ERROR(Fill(kSnapshotMagic.size()));
    if (absl::string_view(data_).substr(0, kSnapshotMagic.size()) != kSnapshotMagic) {
      return Damaged("is no snapshot, or of a version that this one does not read");
    }
    at_ = kSnapshotMagic.size();
    return absl::OkStatus();
  }
  // The record is valid until the next call.
  absl::StatusOr<Record> Next() {
    TANDEM_RETURN_IF_ERROR(Fill(kRecordHeaderBytes));
    uint32_t body;
    std::memcpy(&body, data_.data() + at_ + 2 * sizeof(uint32_t), sizeof(body));
    TANDEM_RETURN_IF_ERROR(Fill(RecordBytes(body)));
    const std::optional<Record> record = ParseRecord(data_, at_);
    if (!record.has_value() || record->position != next_) return Damaged("is damaged");
    ++next_;
    at_ += record->bytes;
    return *record;
  }
  absl::Status Damaged(absl::string_view how) const {
    return absl::DataLossError(absl::StrCat(path_, " ", how, " (byte ", base_ + at_, ")"));
  }

 private:
  // Makes `bytes` bytes available at at_.
  absl::Status Fill(size_t bytes) {
    if (data_.size() - at_ >= bytes) return absl::OkStatus();
    data_.erase(0, at_);
    base_ += at_;
    at_ = 0;
    TANDEM_ASSIGN_OR_RETURN(const std::string more,
                            files_.Read(path_, base_ + data_.size(), std::max(kBuffer, bytes)));
    data_ += more;
    return data_.size() >= bytes ? absl::OkStatus() : Damaged("is cut short");
  }

  FileSystem& files_;
  const std::string path_;
  std::string data_;  // of the file, from base_
  uint64_t base_ = 0;
  size_t at_ = 0;      // within data_
  uint64_t next_ = 1;  // position of the next record
};

}  // namespace

absl::Status RestoreRows(absl::string_view body, absl::Span<const uint32_t> row_floats,
                         absl::FunctionRef<absl::Status(absl::string_view how)> damaged,
                         absl::FunctionRef<absl::StatusOr<RestoreRow>(const v1::SnapshotBucket&)> rows) {
  uint32_t header_bytes = 0;
  v1::SnapshotBucket bucket;
  const bool fits = body.size() >= sizeof(header_bytes);
  if (fits) std::memcpy(&header_bytes, body.data(), sizeof(header_bytes));
  if (!fits || body.size() - sizeof(header_bytes) < header_bytes ||
      !bucket.ParseFromArray(body.data() + sizeof(header_bytes), static_cast<int>(header_bytes)) ||
      bucket.table() >= row_floats.size()) {
    return damaged("has a record that does not parse");
  }
  body.remove_prefix(sizeof(header_bytes) + header_bytes);
  const uint32_t floats = row_floats[bucket.table()];
  if (body.size() % RowBytes(floats) != 0 || body.size() / RowBytes(floats) != bucket.rows()) {
    return damaged("has a record of wrong size");
  }
  TANDEM_ASSIGN_OR_RETURN(const RestoreRow restore, rows(bucket));
  std::vector<float> row(floats);
  for (uint64_t i = 0; i < bucket.rows(); ++i) {
    const char* const from = body.data() + i * RowBytes(floats);
    uint64_t id;
    RowHistory history;
    std::memcpy(&id, from, sizeof(id));
    std::memcpy(&history.version, from + sizeof(id), sizeof(uint32_t));
    std::memcpy(&history.count, from + sizeof(id) + sizeof(uint32_t), sizeof(uint32_t));
    std::memcpy(row.data(), from + kRowHeader, floats * sizeof(float));
    TANDEM_RETURN_IF_ERROR(restore(id, row.data(), history));
  }
  return absl::OkStatus();
}

absl::StatusOr<BucketCopy> BucketCopy::Of(TableStorage& storage, uint32_t table, uint32_t bucket) {
  BucketCopy copy;
  copy.header_.set_table(table);
  copy.header_.set_bucket(bucket);
  copy.header_.set_filter(storage.SaveFilter(bucket));
  copy.row_floats_ = storage.row_floats();
  const size_t row_bytes = copy.row_floats_ * sizeof(float);
  TANDEM_RETURN_IF_ERROR(
      storage.VisitBucket(bucket, [&](uint64_t id, const float* row, const RowHistory& history) {
        copy.rows_.append(reinterpret_cast<const char*>(&id), sizeof(id));
        copy.rows_.append(reinterpret_cast<const char*>(&history.version), sizeof(uint32_t));
        copy.rows_.append(reinterpret_cast<const char*>(&history.count), sizeof(uint32_t));
        copy.rows_.append(reinterpret_cast<const char*>(row), row_bytes);
      }));
  return copy;
}

void BucketCopy::SetPosition(uint64_t position, const std::vector<uint64_t>& queued) {
  header_.set_position(position);
  header_.mutable_queued()->Add(queued.begin(), queued.end());
}

absl::Status BucketCopy::VisitBodies(size_t bytes,
                                     absl::FunctionRef<absl::Status(const Bytes& body)> visit) const {
  const size_t row_bytes = RowBytes(row_floats_);
  const size_t piece = std::max<size_t>(1, bytes / row_bytes) * row_bytes;
  // A bucket without rows has a record, too: its position counts.
  for (size_t begin = 0; begin == 0 || begin < rows_.size(); begin += piece) {
    const size_t size = std::min(piece, rows_.size() - begin);
    v1::SnapshotBucket header = header_;
    header.set_rows(size / row_bytes);
    if (begin > 0) header.clear_filter();
    std::string text = header.SerializeAsString();
    const auto header_bytes = static_cast<uint32_t>(text.size());
    text.insert(0, reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    Bytes body(std::move(text));
    body.Append(Slice::Unowned(rows_.data() + begin, size));
    TANDEM_RETURN_IF_ERROR(visit(body));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SnapshotWriter>> SnapshotWriter::Begin(FileSystem* files,
                                                                      const std::string& directory,
                                                                      const v1::SnapshotState& state) {
  // The limit of a protobuf message.
  if (state.ByteSizeLong() >= size_t{1} << 31) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pushes that wait for other workers need ", state.ByteSizeLong(),
        " bytes in a snapshot, which has room for 2 GiB: workers run too far ahead, or lower --max-parked"));
  }
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(
      files, directory, absl::StrCat(directory, "/", kPrefix, absl::StrFormat("%016x", state.position()))));
  TANDEM_ASSIGN_OR_RETURN(writer->file_, files->Create(absl::StrCat(writer->path_, kUnfinished), 0));
  writer->buffer_ = std::string(kSnapshotMagic);
  TANDEM_RETURN_IF_ERROR(writer->Append(RecordKind::kState, Bytes(state.SerializeAsString())));
  return writer;
}

SnapshotWriter::~SnapshotWriter() {
  file_.reset();
  if (!committed_) (void)files_->Remove(absl::StrCat(path_, kUnfinished));
}

absl::Status SnapshotWriter::Append(RecordKind kind, const Bytes& body) {
  ++records_;
  AppendRecord(kind, records_, 0, body, &buffer_);
  if (buffer_.size() < kBuffer && kind != RecordKind::kEnd) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(file_->WriteAt(offset_, buffer_));
  offset_ += buffer_.size();
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status SnapshotWriter::Add(BucketCopy copy) {
  return copy.VisitBodies(kRecordRows, [this](const Bytes& body) { return Append(RecordKind::kRows, body); });
}

absl::Status SnapshotWriter::Commit() {
  TANDEM_RETURN_IF_ERROR(Append(RecordKind::kEnd, Bytes()));
  TANDEM_RETURN_IF_ERROR(file_->Sync());
  TANDEM_RETURN_IF_ERROR(files_->Rename(absl::StrCat(path_, kUnfinished), path_));
  committed_ = true;
  return files_->SyncDirectory(directory_);
}

absl::StatusOr<std::vector<SnapshotName>> ListSnapshots(FileSystem& files, const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  std::vector<SnapshotName> found;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const std::string path = absl::StrCat(directory, "/", name);
    uint64_t position;
    if (absl::EndsWith(name, kUnfinished)) {
      TANDEM_RETURN_IF_ERROR(files.Remove(path));
    } else if (absl::SimpleHexAtoi(name.substr(kPrefix.size()), &position)) {
      found.push_back({position, path});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const SnapshotName& a, const SnapshotName& b) { return a.position > b.position; });
  return found;
}

absl::Status ReadSnapshot(
    FileSystem& files, const std::string& path,
    absl::FunctionRef<absl::Status(const v1::SnapshotState& state)> state,
    absl::FunctionRef<absl::StatusOr<RestoreRow>(const v1::SnapshotBucket& bucket)> rows) {
  RecordReader reader(files, path);
  TANDEM_RETURN_IF_ERROR(reader.ReadMagic());
  v1::SnapshotState header;
  TANDEM_ASSIGN_OR_RETURN(const Record first, reader.Next());
  if (first.kind != RecordKind::kState ||
      !header.ParseFromArray(first.body.data(), static_cast<int>(first.body.size()))) {
    return reader.Damaged("does not begin with its state");
  }
  TANDEM_RETURN_IF_ERROR(state(header));
  std::vector<uint32_t> row_floats;
  for (const v1::SnapshotTable& table : header.tables()) row_floats.push_back(table.row_floats());
  const auto damaged = [&](absl::string_view how) { return reader.Damaged(how); };
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const Record record, reader.Next());
    if (record.kind == RecordKind::kEnd) return absl::OkStatus();
    if (record.kind != RecordKind::kRows) return reader.Damaged("has a record of unknown kind");
    TANDEM_RETURN_IF_ERROR(RestoreRows(record.body, row_floats, damaged, rows));
  }
}

}  // namespace tandem::ps
