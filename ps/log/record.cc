// SPDX-License-Identifier: Apache-2.0
#include "ps/log/record.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kRecordMagic = 0x31525754;
constexpr size_t kAlignment = 8;
constexpr size_t kChecked = 2 * sizeof(uint32_t);  // offset of the first byte that the CRC covers
constexpr size_t kMaxSegmentHeader = size_t{1} << 20;

static_assert(std::endian::native == std::endian::little);

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T Get(absl::string_view data, size_t offset) {
  T value;
  std::memcpy(&value, data.data() + offset, sizeof(value));
  return value;
}

// Writes the header of a record, but for the CRC.
void FillHeader(RecordKind kind, uint64_t position, uint64_t durable, size_t body_bytes, char* header) {
  TANDEM_CHECK(body_bytes <= std::numeric_limits<uint32_t>::max());
  const uint32_t words[] = {kRecordMagic, 0, static_cast<uint32_t>(body_bytes), static_cast<uint32_t>(kind)};
  const uint64_t positions[] = {position, durable};
  static_assert(sizeof(words) + sizeof(positions) == kRecordHeaderBytes);
  std::memcpy(header, words, sizeof(words));
  std::memcpy(header + sizeof(words), positions, sizeof(positions));
}

// Puts the CRC into a record of which the rest is written.
void Seal(char* record, size_t body_bytes) {
  const uint32_t crc =
      Crc32c(absl::string_view(record + kChecked, kRecordHeaderBytes - kChecked + body_bytes));
  std::memcpy(record + sizeof(uint32_t), &crc, sizeof(crc));
}

}  // namespace

size_t RecordBytes(size_t body_bytes) { return Aligned(kRecordHeaderBytes + body_bytes); }

void AppendRecord(RecordKind kind, uint64_t position, uint64_t durable, const Bytes& body, std::string* out) {
  const size_t begin = out->size();
  char header[kRecordHeaderBytes];
  FillHeader(kind, position, durable, body.size(), header);
  out->append(header, sizeof(header));
  for (const Slice& slice : body.slices()) out->append(slice.data(), slice.size());
  Seal(out->data() + begin, body.size());
  out->resize(begin + RecordBytes(body.size()));
}

void WriteRecord(RecordKind kind, uint64_t position, uint64_t durable, const Bytes& body, char* out) {
  FillHeader(kind, position, durable, body.size(), out);
  char* to = out + kRecordHeaderBytes;
  for (const Slice& slice : body.slices()) {
    std::memcpy(to, slice.data(), slice.size());
    to += slice.size();
  }
  Seal(out, body.size());
  std::memset(to, 0, static_cast<size_t>(out + RecordBytes(body.size()) - to));
}

size_t RecordCost(absl::string_view data, size_t offset) {
  if (offset > data.size() || data.size() - offset < kRecordHeaderBytes) return 0;
  if (Get<uint32_t>(data, offset) != kRecordMagic) return 0;
  const size_t bytes = RecordBytes(Get<uint32_t>(data, offset + kChecked));
  return data.size() - offset < bytes ? 0 : bytes;
}

std::optional<Record> ParseRecord(absl::string_view data, size_t offset) {
  // The padding belongs to the record: callers skip it, and pass it on.
  if (RecordCost(data, offset) == 0) return std::nullopt;
  const uint32_t body = Get<uint32_t>(data, offset + kChecked);
  const absl::string_view checked = data.substr(offset + kChecked, kRecordHeaderBytes - kChecked + body);
  if (Get<uint32_t>(data, offset + sizeof(uint32_t)) != Crc32c(checked)) return std::nullopt;
  return Record{.kind = static_cast<RecordKind>(Get<uint32_t>(data, offset + 12)),
                .position = Get<uint64_t>(data, offset + 16),
                .durable = Get<uint64_t>(data, offset + 24),
                .body = data.substr(offset + kRecordHeaderBytes, body),
                .bytes = RecordBytes(body)};
}

std::string SegmentName(uint64_t first_position, uint64_t term) {
  return absl::StrFormat("log-%016x-%016x", first_position, term);
}

std::optional<uint64_t> TermOfSegment(absl::string_view name) {
  uint64_t position, term;
  if (absl::ConsumePrefix(&name, "log-") && name.size() == 33 && name[16] == '-' &&
      absl::SimpleHexAtoi(name.substr(0, 16), &position) && absl::SimpleHexAtoi(name.substr(17), &term)) {
    return term;
  }
  return std::nullopt;
}

std::string SegmentStart(const v1::LogSegmentHeader& header) {
  std::string start(kSegmentMagic);
  const std::string text = header.SerializeAsString();
  Put(static_cast<uint32_t>(text.size()), &start);
  start += text;
  Put(Crc32c(start), &start);
  start.resize(Aligned(start.size()));
  return start;
}

std::optional<v1::LogSegmentHeader> ParseSegmentStart(absl::string_view data, size_t* records) {
  const size_t fixed = kSegmentMagic.size() + sizeof(uint32_t);
  if (data.size() < fixed || data.substr(0, kSegmentMagic.size()) != kSegmentMagic) return std::nullopt;
  const size_t size = Get<uint32_t>(data, kSegmentMagic.size());
  if (size > kMaxSegmentHeader || data.size() < fixed + size + sizeof(uint32_t)) return std::nullopt;
  if (Get<uint32_t>(data, fixed + size) != Crc32c(data.substr(0, fixed + size))) return std::nullopt;
  v1::LogSegmentHeader header;
  if (!header.ParseFromArray(data.data() + fixed, static_cast<int>(size))) return std::nullopt;
  *records = Aligned(fixed + size + sizeof(uint32_t));
  return header;
}

}  // namespace tandem::ps
