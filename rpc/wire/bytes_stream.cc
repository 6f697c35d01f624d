// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/bytes_stream.h"

#include <algorithm>
#include <limits>

namespace tandem::rpc {

bool BytesInputStream::Next(const void** data, int* size) {
  if (index_ < slices_.size() && offset_ == slices_[index_].size()) {
    ++index_;
    offset_ = 0;
  }
  if (index_ == slices_.size()) return false;
  const Slice& slice = slices_[index_];
  const size_t run = std::min<size_t>(slice.size() - offset_, std::numeric_limits<int>::max());
  *data = slice.data() + offset_;
  *size = static_cast<int>(run);
  offset_ += run;
  count_ += static_cast<int64_t>(run);
  return true;
}

void BytesInputStream::BackUp(int count) {
  // Protobuf backs up over what the last Next() gave, so never past the start of the slice.
  offset_ -= count;
  count_ -= count;
}

bool BytesInputStream::Skip(int count) {
  while (count > 0) {
    const void* data;
    int size;
    if (!Next(&data, &size)) return false;
    if (size > count) BackUp(size - count);
    count -= std::min(size, count);
  }
  return true;
}

}  // namespace tandem::rpc
