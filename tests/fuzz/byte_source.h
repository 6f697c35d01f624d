// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_BYTE_SOURCE_H_
#define TANDEM_TESTS_FUZZ_BYTE_SOURCE_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {

// Takes numbers off the front of an input. Returns zeros when the input is used up.
class ByteSource {
 public:
  explicit ByteSource(Input input) : left_(input) {}

  template <typename T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof(T), left_.size());
    if (size > 0) std::memcpy(&value, left_.data(), size);
    left_.remove_prefix(size);
    return value;
  }
  // Returns the next `size` bytes, or the rest if that is shorter.
  Input Take(size_t size) {
    const Input taken = left_.first(std::min(size, left_.size()));
    left_.remove_prefix(taken.size());
    return taken;
  }
  Input Rest() const { return left_; }

 private:
  Input left_;
};

inline std::string ToString(Input input) {
  return std::string(reinterpret_cast<const char*>(input.data()), input.size());
}

// Returns the bytes as a transport may deliver them: in chunks of `chunk` bytes (0: in one chunk). Each chunk
// has its own memory that ends where the chunk does, so that a sanitizer detects a read past it.
inline Bytes InChunks(const std::string& text, size_t chunk) {
  if (chunk == 0) return Bytes(text);
  Bytes bytes;
  for (size_t at = 0; at < text.size(); at += chunk) {
    const size_t size = std::min(chunk, text.size() - at);
    std::shared_ptr<char> memory(new char[size], std::default_delete<char[]>());
    std::memcpy(memory.get(), text.data() + at, size);
    const char* const data = memory.get();
    bytes.Append(Slice(std::move(memory), data, size));
  }
  return bytes;
}

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_BYTE_SOURCE_H_
