// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/copy_bytes.h"
#include "base/status.h"

namespace tandem {

Slice Slice::FromString(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  const char* data = owner->data();
  size_t size = owner->size();
  return Slice(std::move(owner), data, size);
}

Bytes Bytes::Sub(size_t offset, size_t length) const {
  TANDEM_CHECK(offset <= size_ && length <= size_ - offset);
  Bytes part;
  for (const Slice& slice : slices_) {
    if (length == 0) break;
    if (offset >= slice.size()) {
      offset -= slice.size();
      continue;
    }
    const size_t take = std::min(length, slice.size() - offset);
    part.Append(slice.Sub(offset, take));
    offset = 0;
    length -= take;
  }
  return part;
}

std::string Bytes::Flatten() const {
  std::string flat;
  flat.reserve(size_);
  for (const Slice& slice : slices_) flat.append(slice.data(), slice.size());
  return flat;
}

absl::string_view BytesReader::Next(size_t limit) {
  while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
    ++index_;
    offset_ = 0;
  }
  if (index_ == slices_.size() || limit == 0) return {};
  const Slice& slice = slices_[index_];
  const size_t take = std::min(limit, slice.size() - offset_);
  absl::string_view run(slice.data() + offset_, take);
  offset_ += take;
  remaining_ -= take;
  return run;
}

bool BytesReader::Copy(void* out, size_t size) {
  if (size > remaining_) return false;
  char* to = static_cast<char*>(out);
  while (size > 0) {
    absl::string_view run = Next(size);
    CopyBytes(to, run.data(), run.size());
    to += run.size();
    size -= run.size();
  }
  return true;
}

bool BytesReader::Skip(size_t size) {
  if (size > remaining_) return false;
  while (size > 0) size -= Next(size).size();
  return true;
}

const char* BytesReader::Contiguous(size_t size, size_t align, std::string* scratch) {
  if (size > remaining_) return nullptr;
  if (size == 0) return "";
  while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
    ++index_;
    offset_ = 0;
  }
  const Slice& slice = slices_[index_];
  const char* here = slice.data() + offset_;
  const bool aligned = (reinterpret_cast<uintptr_t>(here) & (align - 1)) == 0;
  if (aligned && slice.size() - offset_ >= size) {
    offset_ += size;
    remaining_ -= size;
    return here;
  }
  scratch->resize(size);
  Copy(scratch->data(), size);
  return scratch->data();
}

}  // namespace tandem
