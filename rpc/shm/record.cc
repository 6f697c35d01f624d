// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/record.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/round_up.h"
#include "base/status.h"
#include "rpc/shm/layout.h"

namespace tandem::rpc::shm {
namespace {

constexpr int kMaxCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the shared memory is damaged: ", what));
}

}  // namespace

absl::Status ParseRecord(absl::string_view copy, size_t payload_bytes, Record* record) {
  RecordHead head;
  if (copy.size() < sizeof(head)) return Damaged("a record has no head");
  std::memcpy(&head, copy.data(), sizeof(head));
  if (head.kind < static_cast<uint8_t>(RecordKind::kRequest) ||
      head.kind > static_cast<uint8_t>(RecordKind::kAbandon)) {
    return Damaged(absl::StrCat("a record of unknown kind ", head.kind));
  }
  if (head.more > 1 || head.code > kMaxCode) {
    return Damaged(absl::StrCat("a record with flag ", head.more, " and code ", head.code));
  }
  if (head.segments > kMaxSegments || head.text_bytes > kMaxText || head.inline_bytes > kMaxInline) {
    return Damaged(absl::StrCat("a record of ", head.segments, " segments, ", head.text_bytes,
                                " bytes of text and ", head.inline_bytes, " bytes inline"));
  }
  const size_t refs_bytes = head.segments * sizeof(SegmentRef);
  const size_t bytes = sizeof(head) + refs_bytes + head.text_bytes + head.inline_bytes;
  if (head.bytes != copy.size() || RoundUp(bytes, kRecordUnit) != copy.size()) {
    return Damaged(absl::StrCat("a record of ", copy.size(), " bytes that needs ", bytes));
  }
  record->kind = static_cast<RecordKind>(head.kind);
  record->more = head.more != 0;
  record->call = head.call;
  record->deadline_ns = head.deadline_ns;
  record->code = static_cast<absl::StatusCode>(head.code);
  record->segments.resize(head.segments);
  if (refs_bytes > 0) std::memcpy(record->segments.data(), copy.data() + sizeof(head), refs_bytes);
  record->text = copy.substr(sizeof(head) + refs_bytes, head.text_bytes);
  record->inline_bytes = copy.substr(sizeof(head) + refs_bytes + head.text_bytes, head.inline_bytes);

  size_t inline_left = head.inline_bytes;
  for (const SegmentRef& segment : record->segments) {
    if (segment.bytes == 0) return Damaged("an empty segment");
    if (segment.block == SegmentRef::kInline) {
      if (segment.bytes > inline_left) return Damaged("a segment is longer than the record's inline bytes");
      inline_left -= segment.bytes;
      continue;
    }
    if (segment.offset > payload_bytes || segment.bytes > payload_bytes - segment.offset) {
      return Damaged(absl::StrCat("a segment of ", segment.bytes, " bytes at ", segment.offset, " of ",
                                  payload_bytes, " bytes of payload"));
    }
    if (segment.block > segment.offset / kPage) {
      return Damaged(
          absl::StrCat("a segment at ", segment.offset, " of a block that begins at page ", segment.block));
    }
  }
  if (inline_left > 0) return Damaged("inline bytes that belong to no segment");
  return absl::OkStatus();
}

size_t EncodeRecord(const Record& record, char* out) {
  const size_t refs_bytes = record.segments.size() * sizeof(SegmentRef);
  const size_t bytes = sizeof(RecordHead) + refs_bytes + record.text.size() + record.inline_bytes.size();
  RecordHead head;
  head.bytes = static_cast<uint32_t>(RoundUp(bytes, kRecordUnit));
  head.kind = static_cast<uint8_t>(record.kind);
  head.more = record.more ? 1 : 0;
  head.segments = static_cast<uint16_t>(record.segments.size());
  head.call = record.call;
  head.deadline_ns = record.deadline_ns;
  head.code = static_cast<uint32_t>(record.code);
  head.text_bytes = static_cast<uint32_t>(record.text.size());
  head.inline_bytes = static_cast<uint32_t>(record.inline_bytes.size());
  char* end = out;
  const auto put = [&end](const void* data, size_t size) {
    if (size > 0) std::memcpy(end, data, size);
    end += size;
  };
  put(&head, sizeof(head));
  put(record.segments.data(), refs_bytes);
  put(record.text.data(), record.text.size());
  put(record.inline_bytes.data(), record.inline_bytes.size());
  // No other memory of this process may become visible to the peer.
  std::memset(end, 0, head.bytes - bytes);
  return head.bytes;
}

absl::StatusOr<bool> RecordReader::Next(std::string* copy) {
  const uint64_t written = written_->load(std::memory_order_acquire);
  if (written == position_) return false;
  const uint64_t there = written - position_;
  if (there > size_ || there % kRecordUnit != 0) {
    return Damaged(absl::StrCat("a ring of ", size_, " bytes is said to hold ", there));
  }
  // A record's head never wraps, because both sizes are multiples of the unit.
  const size_t begin = position_ & (size_ - 1);
  uint32_t bytes;
  std::memcpy(&bytes, ring_ + begin, sizeof(bytes));
  if (bytes < kRecordUnit || bytes > kMaxRecord || bytes % kRecordUnit != 0 || bytes > there) {
    return Damaged(absl::StrCat("a record is said to have ", bytes, " bytes where ", there, " are there"));
  }
  copy->resize(bytes);
  const size_t first = std::min<size_t>(bytes, size_ - begin);
  std::memcpy(copy->data(), ring_ + begin, first);
  std::memcpy(copy->data() + first, ring_, bytes - first);
  // The size that was checked counts, even if the peer has changed the ring since.
  std::memcpy(copy->data(), &bytes, sizeof(bytes));
  position_ += bytes;
  read_->store(position_, std::memory_order_seq_cst);
  return true;
}

absl::StatusOr<bool> RecordWriter::HasRoom() {
  if (position_ + kMaxRecord - known_read_ <= size_) return true;
  const uint64_t read = read_->load(std::memory_order_seq_cst);
  if (position_ - read > position_ - known_read_) {  // it went backwards, or ahead of what was written
    return Damaged(absl::StrCat("of ", position_, " bytes written, ", read, " are said to have been read"));
  }
  known_read_ = read;
  return position_ + kMaxRecord - known_read_ <= size_;
}

void RecordWriter::Put(absl::string_view record) {
  TANDEM_CHECK(position_ + record.size() - known_read_ <= size_);
  const size_t begin = position_ & (size_ - 1);
  const size_t first = std::min(record.size(), size_ - begin);
  std::memcpy(ring_ + begin, record.data(), first);
  std::memcpy(ring_, record.data() + first, record.size() - first);
  position_ += record.size();
  written_->store(position_, std::memory_order_seq_cst);
}

}  // namespace tandem::rpc::shm
