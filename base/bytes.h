// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_BYTES_H_
#define TANDEM_BASE_BYTES_H_

// Reference-counted bytes that travel from a socket to a table row, and back, without being copied.
//
// `Slice` is an immutable run of memory with shared ownership; `Bytes` is a sequence of slices, as a message
// arrives from the network or as it is put together for sending. Copying either copies references, not bytes.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem {

// An immutable run of memory and a reference that keeps it alive. Thread-compatible; any thread may read the
// bytes.
class Slice {
 public:
  Slice() = default;
  // `owner` keeps [data, data + size) alive and unchanged while any copy of the slice exists.
  Slice(std::shared_ptr<const void> owner, const char* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}

  // Takes over the memory of `text`.
  static Slice FromString(std::string text);
  // Refers to memory that the caller keeps alive and unchanged until the message that contains it has been
  // delivered. Code that may keep the message longer, such as a socket's queue after a deadline, copies such
  // slices; it shares slices that have an owner.
  static Slice Unowned(const void* data, size_t size) {
    return Slice(nullptr, static_cast<const char*>(data), size);
  }

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  absl::string_view view() const { return {data_, size_}; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  // Returns the bytes [offset, offset + length), which must lie within the slice. Shares the memory.
  Slice Sub(size_t offset, size_t length) const { return Slice(owner_, data_ + offset, length); }

 private:
  std::shared_ptr<const void> owner_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// A sequence of slices that is read as one run of bytes. Thread-compatible.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(Slice slice) { Append(std::move(slice)); }
  explicit Bytes(std::string text) { Append(Slice::FromString(std::move(text))); }

  void Append(Slice slice) {
    if (slice.size() == 0) return;
    size_ += slice.size();
    slices_.push_back(std::move(slice));
  }
  void Append(Bytes other) {
    for (Slice& slice : other.slices_) Append(std::move(slice));
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::Span<const Slice> slices() const { return slices_; }
  // Returns the bytes [offset, offset + length), which must lie within the sequence. Shares the memory.
  Bytes Sub(size_t offset, size_t length) const;
  // Returns one contiguous copy.
  std::string Flatten() const;

 private:
  absl::InlinedVector<Slice, 2> slices_;
  size_t size_ = 0;
};

// Reads a `Bytes` from front to back without copying, except in Copy and Contiguous. Not thread-safe. `bytes`
// must outlive the reader.
class BytesReader {
 public:
  explicit BytesReader(const Bytes& bytes) : slices_(bytes.slices()), remaining_(bytes.size()) {}

  // Returns the number of bytes that have not been read.
  size_t remaining() const { return remaining_; }
  // Returns the next contiguous run of at most `limit` bytes and moves past it. Empty only if no bytes remain
  // or `limit` is 0.
  absl::string_view Next(size_t limit);
  // Copies `size` bytes to `out` and moves past them. Returns false, and does not move, if fewer remain.
  bool Copy(void* out, size_t size);
  // Moves past `size` bytes. Returns false, and does not move, if fewer remain.
  bool Skip(size_t size);
  // Returns a pointer to the next `size` bytes and moves past them. The pointer refers to the slice itself if
  // the bytes lie in one slice and are aligned to `align` (a power of two). Otherwise they are copied to
  // `scratch`, which is resized. Returns nullptr, and does not move, if fewer bytes remain.
  const char* Contiguous(size_t size, size_t align, std::string* scratch);

 private:
  absl::Span<const Slice> slices_;
  size_t index_ = 0;   // slice being read
  size_t offset_ = 0;  // within it
  size_t remaining_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_BYTES_H_
