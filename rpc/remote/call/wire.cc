// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tandem::rpc::remote {
namespace {

constexpr char kPadding[kBulkAlignment] = {};
constexpr uint64_t kMaxDimensions = 32;
// The limit of small values. They share a protobuf message, which may have 2 GiB, with other fields.
constexpr size_t kMaxSmallBytes = size_t{1} << 30;

absl::Status CutOff() { return absl::InvalidArgumentError("the encoded value is cut off"); }

}  // namespace

absl::Status CheckSize(const Encoded& encoded, absl::string_view what, size_t max_bytes,
                       absl::string_view whose) {
  if (encoded.small.size() > kMaxSmallBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, " of ", encoded.small.size(), " bytes of small values (strings below ", kBulkBytes,
        " bytes, lists of them) is more than the ", kMaxSmallBytes,
        " that travel at once: make it a tensor or a list of numbers, or give it in pieces (a stream)"));
  }
  if (encoded.size() <= max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(what, " of ", encoded.size(), " bytes is more than ",
                                                   whose, "'s limit of ", max_bytes, ": ", kTooLargeRemedy));
}

void Writer::Varint(uint64_t value) {
  char bytes[10];
  size_t size = 0;
  while (value >= 0x80) {
    bytes[size++] = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  bytes[size++] = static_cast<char>(value);
  encoded_.small.append(bytes, size);
}

void Writer::String(absl::string_view text) {
  if (text.size() >= kBulkBytes) {
    String(std::string(text));
    return;
  }
  Varint(text.size());
  encoded_.small.append(text.data(), text.size());
}

void Writer::String(std::string&& text) {
  Varint(text.size());
  if (text.size() >= kBulkBytes) {
    Bulk(Bytes(std::move(text)));
  } else {
    encoded_.small.append(text);
  }
}

void Writer::Bulk(Bytes bytes) {
  const size_t over = encoded_.bulk.size() % kBulkAlignment;
  if (over != 0) {
    // An owner that never frees the constant. With an owner, transports do not copy it.
    static const std::shared_ptr<const void> forever(static_cast<const void*>(kPadding), [](const void*) {});
    encoded_.bulk.Append(Slice(forever, kPadding, kBulkAlignment - over));
  }
  encoded_.bulk.Append(std::move(bytes));
}

void Writer::WriteTensor(const Tensor& tensor) {
  Varint(static_cast<uint64_t>(tensor.dtype()));
  Varint(tensor.shape().size());
  for (const int64_t dimension : tensor.shape()) Varint(static_cast<uint64_t>(dimension));
  if (tensor.bytes() > 0) Bulk(tensor.Chunks());
}

void Writer::Reference(const std::shared_ptr<ReferenceHandle>& handle) {
  if (references_ == nullptr) {
    status_ = absl::FailedPreconditionError("a reference cannot be sent from here");
    return;
  }
  absl::StatusOr<std::string> wire = references_->Send(handle);
  if (wire.ok()) {
    String(*std::move(wire));
  } else if (status_.ok()) {
    status_ = wire.status();
  }
}

bool Reader::Fail(absl::Status why) {
  if (status_.ok()) status_ = std::move(why);
  small_ = {};
  return false;
}

bool Reader::Varint(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (small_.empty()) return Fail(CutOff());
    const uint64_t bits = static_cast<uint8_t>(small_[0]);
    small_.remove_prefix(1);
    if (shift < 64) *value |= (bits & 0x7f) << shift;
    if ((bits & 0x80) == 0) return true;
  }
  return Fail(absl::InvalidArgumentError("a number in the encoded value is too long"));
}

bool Reader::Signed(int64_t* value) {
  uint64_t bits;
  if (!Varint(&bits)) return false;
  *value = static_cast<int64_t>((bits >> 1) ^ (~(bits & 1) + 1));
  return true;
}

bool Reader::Raw(void* out, size_t size) {
  if (small_.size() < size) return Fail(CutOff());
  if (size > 0) std::memcpy(out, small_.data(), size);  // `out` may be null if there are no elements
  small_.remove_prefix(size);
  return true;
}

bool Reader::String(std::string* text) {
  uint64_t size;
  if (!Varint(&size)) return false;
  if (size >= kBulkBytes) {
    Bytes bytes;
    if (!Bulk(size, &bytes)) return false;
    *text = bytes.Flatten();
    return true;
  }
  if (small_.size() < size) return Fail(CutOff());
  text->assign(small_.data(), size);
  small_.remove_prefix(size);
  return true;
}

bool Reader::Count(size_t element_bytes, size_t* count) {
  uint64_t value;
  if (!Varint(&value)) return false;
  const size_t there = small_.size() + (bulk_.size() - bulk_offset_);
  if (value > there / std::max<size_t>(element_bytes, 1)) return Fail(CutOff());
  *count = value;
  return true;
}

bool Reader::Bulk(size_t size, Bytes* bytes) {
  if (!status_.ok()) return false;
  const size_t begin = (bulk_offset_ + kBulkAlignment - 1) / kBulkAlignment * kBulkAlignment;
  if (begin > bulk_.size() || size > bulk_.size() - begin) return Fail(CutOff());
  *bytes = bulk_.Sub(begin, size);
  bulk_offset_ = begin + size;
  return true;
}

bool Reader::ReadTensor(Tensor* tensor) {
  uint64_t dtype, dimensions;
  if (!Varint(&dtype) || !Varint(&dimensions)) return false;
  if (dtype >= static_cast<uint64_t>(kNumDTypes) || dimensions > kMaxDimensions) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("a tensor of dtype number ", dtype, " with ",
                                                        dimensions, " dimensions is not known here")));
  }
  Tensor::Shape shape(dimensions);
  uint64_t bytes = SizeOf(static_cast<DType>(dtype));
  bool empty = false, too_large = false;
  for (int64_t& dimension : shape) {
    uint64_t value;
    if (!Varint(&value)) return false;
    empty = empty || value == 0;
    too_large = too_large || value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
                __builtin_mul_overflow(bytes, std::max<uint64_t>(value, 1), &bytes);
    dimension = static_cast<int64_t>(value);
  }
  if (too_large) return Fail(absl::InvalidArgumentError("a tensor's shape is too large"));
  Bytes elements;
  if (!empty && !Bulk(bytes, &elements)) return false;
  absl::StatusOr<Tensor> made =
      Tensor::FromBytes(static_cast<DType>(dtype), std::move(shape), std::move(elements));
  if (!made.ok()) return Fail(made.status());
  *tensor = *std::move(made);
  return true;
}

bool Reader::Reference(std::shared_ptr<ReferenceHandle>* handle) {
  std::string wire;
  if (!String(&wire)) return false;
  if (references_ == nullptr) {
    return Fail(absl::FailedPreconditionError("a reference came where none can be received"));
  }
  absl::StatusOr<std::shared_ptr<ReferenceHandle>> received = references_->Receive(wire);
  if (!received.ok()) return Fail(received.status());
  *handle = *std::move(received);
  return true;
}

bool Reader::Finish() {
  if (!status_.ok()) return false;
  if (!small_.empty() || bulk_offset_ != bulk_.size()) {
    return Fail(absl::InvalidArgumentError("the encoded value is longer than its type"));
  }
  return true;
}

}  // namespace tandem::rpc::remote
