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

// Takes numbers off the front of an input; zeros once it is used up.
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
  // The next `size` bytes, or what is left.
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

// The bytes as a transport may hand them over: in pieces of `piece` bytes (0: in one), each in memory of its
// own that ends where the piece does, so that a sanitizer sees a read past it.
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
