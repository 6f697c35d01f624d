// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/bulk_codec.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "rpc/wire/bytes_stream.h"

namespace tandem::rpc {
namespace {

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLength = 2,
  kGroupStart = 3,
  kGroupEnd = 4,
  kFixed32 = 5
};

constexpr uint32_t kPayloadTag = (kPayloadField << 3) | kLength;
constexpr int kMaxGroupDepth = 100;  // protobuf's own recursion limit

// Walks the fields of one wire message without looking into them.
class FieldWalker {
 public:
  explicit FieldWalker(const Bytes& wire) : reader_(wire), size_(wire.size()) {}

  size_t offset() const { return size_ - reader_.remaining(); }
  bool AtEnd() const { return reader_.remaining() == 0; }

  // Returns nullptr on success, else an error message.
  const char* ReadTag(uint32_t* tag) {
    uint64_t value;
    if (!ReadVarint(&value)) return "a field tag is cut off or too long";
    if (value > std::numeric_limits<uint32_t>::max()) return "a field tag is too large";
    if ((value >> 3) == 0) return "a field has number 0";
    *tag = static_cast<uint32_t>(value);
    return nullptr;
  }

  const char* ReadLength(uint64_t* length) {
    if (!ReadVarint(length)) return "a field length is cut off or too long";
    if (*length > reader_.remaining()) return "a field is longer than what is left of the message";
    return nullptr;
  }

  const char* SkipBytes(uint64_t count) {
    return reader_.Skip(count) ? nullptr : "a field is longer than what is left of the message";
  }

  // Skips the value of a field whose tag was just read.
  const char* SkipValue(uint32_t tag) {
    int depth = 0;
    while (true) {
      const char* wrong = nullptr;
      uint64_t number;
      switch (tag & 7) {
        case kVarint:
          if (!ReadVarint(&number)) wrong = "a varint is cut off or too long";
          break;
        case kFixed64:
          wrong = SkipBytes(8);
          break;
        case kFixed32:
          wrong = SkipBytes(4);
          break;
        case kLength:
          wrong = ReadLength(&number);
          if (wrong == nullptr) wrong = SkipBytes(number);
          break;
        case kGroupStart:
          if (++depth > kMaxGroupDepth) wrong = "groups are nested too deeply";
          break;
        case kGroupEnd:
          if (--depth < 0) wrong = "a group ends that never began";
          break;
        default:
          wrong = "a field has an unknown wire type";
      }
      if (wrong != nullptr || depth == 0) return wrong;
      wrong = ReadTag(&tag);
      if (wrong != nullptr) return wrong;
    }
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const absl::string_view byte = reader_.Next(1);
      if (byte.empty()) return false;
      const uint64_t bits = static_cast<uint8_t>(byte[0]);
      if (shift < 64) *value |= (bits & 0x7f) << shift;
      if ((bits & 0x80) == 0) return true;
    }
    return false;
  }

 private:
  BytesReader reader_;
  size_t size_;
};

absl::Status Malformed(const google::protobuf::MessageLite& message, size_t offset, size_t size,
                       absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed ", message.GetTypeName(), " at byte ", offset, " of ", size, ": ", what));
}

}  // namespace

Bytes EncodeBulkHead(const google::protobuf::MessageLite& header, uint64_t payload_bytes) {
  using google::protobuf::io::CodedOutputStream;
  std::string head;
  const size_t header_size = header.ByteSizeLong();
  head.resize(header_size + 1 + 10);
  uint8_t* begin = reinterpret_cast<uint8_t*>(head.data());
  header.SerializeToArray(begin, static_cast<int>(header_size));
  uint8_t* end = begin + header_size;
  // Protobuf omits an empty field, so this function does, too.
  if (payload_bytes > 0) {
    end = CodedOutputStream::WriteTagToArray(kPayloadTag, end);
    end = CodedOutputStream::WriteVarint64ToArray(payload_bytes, end);
  }
  head.resize(end - begin);
  return Bytes(std::move(head));
}

size_t BulkSize(const google::protobuf::MessageLite& header, uint64_t payload_bytes) {
  using google::protobuf::io::CodedOutputStream;
  const size_t head = header.ByteSizeLong();
  return payload_bytes == 0 ? head
                            : head + 1 + CodedOutputStream::VarintSize64(payload_bytes) + payload_bytes;
}

void AppendBulk(const google::protobuf::MessageLite& header, const Bytes& payload, std::string* out) {
  using google::protobuf::io::CodedOutputStream;
  const size_t begin = out->size();
  out->resize(begin + BulkSize(header, payload.size()));
  uint8_t* to = reinterpret_cast<uint8_t*>(out->data() + begin);
  to = header.SerializeWithCachedSizesToArray(to);
  if (payload.empty()) return;
  to = CodedOutputStream::WriteTagToArray(kPayloadTag, to);
  to = CodedOutputStream::WriteVarint64ToArray(payload.size(), to);
  BytesReader(payload).Copy(to, payload.size());
}

Bytes EncodeBulk(const google::protobuf::MessageLite& header, Bytes payload) {
  Bytes wire = EncodeBulkHead(header, payload.size());
  wire.Append(std::move(payload));
  return wire;
}

std::optional<size_t> DecodeBulkHead(const Bytes& begin, uint64_t total,
                                     google::protobuf::MessageLite* header) {
  FieldWalker walker(begin);
  while (!walker.AtEnd()) {
    const size_t field_begin = walker.offset();
    uint32_t tag;
    if (walker.ReadTag(&tag) != nullptr) return std::nullopt;
    if (tag != kPayloadTag) {
      if (walker.SkipValue(tag) != nullptr) return std::nullopt;
      continue;
    }
    uint64_t length;
    if (!walker.ReadVarint(&length) || length != total - walker.offset()) return std::nullopt;
    const Bytes head = begin.Sub(0, field_begin);
    BytesInputStream stream(head);
    if (!header->ParseFromZeroCopyStream(&stream)) return std::nullopt;
    return walker.offset();
  }
  return std::nullopt;
}

absl::Status DecodeBulk(const Bytes& wire, google::protobuf::MessageLite* header, Bytes* payload,
                        size_t max_header_bytes) {
  const auto too_large = [&] {
    return absl::ResourceExhaustedError(absl::StrCat("a ", header->GetTypeName(), " of ", wire.size(),
                                                     " bytes has a header of more than ", max_header_bytes,
                                                     " bytes, which is the most that is accepted"));
  };
  Bytes head;
  Bytes found;
  size_t head_begin = 0;  // start of the run of header fields being walked
  FieldWalker walker(wire);
  while (!walker.AtEnd()) {
    const size_t field_begin = walker.offset();
    uint32_t tag;
    const char* wrong = walker.ReadTag(&tag);
    if (wrong == nullptr && tag == kPayloadTag) {
      uint64_t length = 0;
      wrong = walker.ReadLength(&length);
      if (wrong == nullptr) {
        found = wire.Sub(walker.offset(), length);
        walker.SkipBytes(length);
        head.Append(wire.Sub(head_begin, field_begin - head_begin));
        head_begin = walker.offset();
      }
    } else if (wrong == nullptr) {
      wrong = walker.SkipValue(tag);
    }
    if (wrong != nullptr) return Malformed(*header, field_begin, wire.size(), wrong);
    if (head.size() + (walker.offset() - head_begin) > max_header_bytes) return too_large();
  }
  head.Append(wire.Sub(head_begin, wire.size() - head_begin));

  BytesInputStream stream(head);
  if (!header->ParseFromZeroCopyStream(&stream)) {
    return Malformed(*header, 0, wire.size(),
                     absl::StrCat("its ", head.size(), " bytes of header do not parse"));
  }
  *payload = std::move(found);
  return absl::OkStatus();
}

}  // namespace tandem::rpc
