// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_REQUEST_ARRAY_READER_H_
#define TANDEM_PS_SERVER_REQUEST_ARRAY_READER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "base/copy_bytes.h"

namespace tandem::ps {

// Reads arrays from a payload, one after the other. The payload may be memory that the client can still write
// to (rpc/shm): values that are checked and then relied on, such as ids and offsets, must be copied first.
// Not thread-safe. The payload and the pool must outlive the reader.
class ArrayReader {
 public:
  ArrayReader(const Bytes& payload, BufferPool& buffers)
      : slices_(payload.slices()), remaining_(payload.size()), buffers_(buffers) {}

  // Copies the next `count` elements into memory of its own. Returns false, having read nothing, if fewer
  // remain.
  template <typename T>
  bool Copy(uint64_t count, absl::Span<const T>* out) {
    if (count > remaining_ / sizeof(T)) return false;
    *out = absl::MakeConstSpan(reinterpret_cast<const T*>(TakeCopy(count * sizeof(T))), count);
    return true;
  }

  // Returns the next `count` elements in place if they are contiguous, aligned and their memory is owned;
  // else copies them. Unowned memory is valid only until the call is finished, and a push may wait longer.
  // Returns false, having read nothing, if fewer remain.
  template <typename T>
  bool Read(uint64_t count, absl::Span<const T>* out) {
    if (count > remaining_ / sizeof(T)) return false;
    const char* at = Take(count * sizeof(T), alignof(T), /*must_own=*/true);
    *out = absl::MakeConstSpan(reinterpret_cast<const T*>(at), count);
    return true;
  }

  // Returns the next `size` bytes contiguously, at any alignment. They may lie in unowned memory: decode them
  // before the call is finished. Returns false, having read nothing, if fewer remain.
  bool ReadBytes(uint64_t size, absl::string_view* out) {
    if (size > remaining_) return false;
    *out = absl::string_view(Take(size, /*align=*/1, /*must_own=*/false), size);
    return true;
  }

  // Returns memory for `count` elements that the caller decodes from the payload. TakeCopies includes it.
  template <typename T>
  T* Allocate(size_t count) {
    static_assert(alignof(T) <= kAlignment);
    return reinterpret_cast<T*>(AllocateBytes(count * sizeof(T)));
  }

  size_t remaining() const { return remaining_; }  // bytes
  // Returns the bytes of memory that copied and decoded arrays take.
  size_t allocated() const { return allocated_; }
  // Returns the memory of copied and decoded arrays. Call once, after the last array.
  std::vector<std::shared_ptr<char>> TakeCopies() { return std::move(copies_); }

 private:
  static constexpr size_t kAlignment = alignof(uint64_t);
  static constexpr size_t kChunkBytes = size_t{1} << 16;

  const char* Take(size_t bytes, size_t align, bool must_own) {
    if (bytes == 0) return nullptr;
    SkipFinished();
    const Slice& slice = slices_[index_];
    const char* const here = slice.data() + offset_;
    if (slice.size() - offset_ >= bytes && reinterpret_cast<uintptr_t>(here) % align == 0 &&
        (!must_own || slice.owner() != nullptr)) {
      offset_ += bytes;
      remaining_ -= bytes;
      return here;
    }
    return TakeCopy(bytes);
  }

  const char* TakeCopy(size_t bytes) {
    if (bytes == 0) return nullptr;
    remaining_ -= bytes;
    char* const copy = AllocateBytes(bytes);
    for (size_t done = 0; done < bytes;) {
      SkipFinished();
      const size_t take = std::min(bytes - done, slices_[index_].size() - offset_);
      CopyBytes(copy + done, slices_[index_].data() + offset_, take);
      done += take;
      offset_ += take;
    }
    return copy;
  }

  void SkipFinished() {
    while (offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

  char* AllocateBytes(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    allocated_ += bytes;
    if (bytes > chunk_left_) {
      chunk_left_ = std::max(bytes, std::min(kChunkBytes, remaining_ + bytes));
      copies_.push_back(buffers_.Get(chunk_left_));
      chunk_ = copies_.back().get();
    }
    char* const at = chunk_;
    chunk_ += bytes;
    chunk_left_ -= bytes;
    return at;
  }

  const absl::Span<const Slice> slices_;
  size_t index_ = 0;   // of the slice being read
  size_t offset_ = 0;  // of the next byte, within that slice
  size_t remaining_;
  BufferPool& buffers_;
  std::vector<std::shared_ptr<char>> copies_;
  char* chunk_ = nullptr;
  size_t chunk_left_ = 0;
  size_t allocated_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_REQUEST_ARRAY_READER_H_
