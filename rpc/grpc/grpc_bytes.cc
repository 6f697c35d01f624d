// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/grpc_bytes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/slice.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tandem::rpc {
namespace {
constexpr size_t kCopyOutgoing = 1024;  // below this a copy is cheaper than a reference and its release
constexpr size_t kCopyIncoming = 512;

using Owner = std::shared_ptr<const void>;

// gRPC releases slices on its own threads. It orders the release with a reference count that ThreadSanitizer
// does not see in its builds.
#if defined(__SANITIZE_THREAD__)
void Released(void* p) { __tsan_release(p); }
void Acquired(void* p) { __tsan_acquire(p); }
#else
void Released(void*) {}
void Acquired(void*) {}
#endif

Owner* NewOwner(const Owner& owner) {
  auto* held = new Owner(owner);
  Released(held);
  return held;
}
void DeleteOwner(void* held) {
  Acquired(held);
  delete static_cast<Owner*>(held);
}

// Shares the memory, unless the slice is short or has no owner: such memory may be freed before it is sent.
grpc::Slice ToSlice(const Slice& slice) {
  if (slice.size() < kCopyOutgoing || slice.owner() == nullptr)
    return grpc::Slice(slice.data(), slice.size());
  // gRPC asks for mutable memory but only reads what is sent.
  return grpc::Slice(const_cast<char*>(slice.data()), slice.size(), &DeleteOwner, NewOwner(slice.owner()));
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(const Bytes& bytes) {
  if (bytes.slices().size() == 1) {
    const grpc::Slice slice = ToSlice(bytes.slices()[0]);
    return grpc::ByteBuffer(&slice, 1);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(bytes.slices().size());
  std::string small;  // a run of short slices becomes one slice
  const auto flush = [&] {
    if (!small.empty()) slices.emplace_back(small);
    small.clear();
  };
  for (const Slice& slice : bytes.slices()) {
    if (slice.size() < kCopyOutgoing) {
      small.append(slice.data(), slice.size());
      continue;
    }
    flush();
    slices.push_back(ToSlice(slice));
  }
  flush();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

Bytes FromByteBuffer(const grpc::ByteBuffer& buffer) {
  if (grpc::Slice slice;
      buffer.Valid() && buffer.Length() <= kCopyIncoming && buffer.TrySingleSlice(&slice).ok()) {
    return Bytes(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()));
  }
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!buffer.Valid() || !buffer.Dump(slices.get()).ok()) return Bytes();
  if (buffer.Length() <= kCopyIncoming) {
    std::string text;
    text.reserve(buffer.Length());
    for (const grpc::Slice& slice : *slices)
      text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return Bytes(std::move(text));
  }
  Bytes bytes;
  for (const grpc::Slice& slice : *slices) {
    bytes.Append(Slice(slices, reinterpret_cast<const char*>(slice.begin()), slice.size()));
  }
  return bytes;
}

}  // namespace tandem::rpc
