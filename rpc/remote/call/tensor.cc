// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/tensor.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/copy_bytes.h"
#include "base/status.h"

namespace tandem::rpc::remote {
namespace {

constexpr size_t kAlignment = 64;

// Returns the number of elements of a shape, or nullopt if a dimension is negative or their bytes exceed
// int64.
std::optional<size_t> CountOf(DType dtype, const Tensor::Shape& shape) {
  size_t count = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty = empty || dimension == 0;
    size_t next;
    if (__builtin_mul_overflow(count, static_cast<size_t>(dimension == 0 ? 1 : dimension), &next))
      return std::nullopt;
    count = next;
  }
  size_t bytes;
  if (__builtin_mul_overflow(count, SizeOf(dtype), &bytes) || bytes > std::numeric_limits<int64_t>::max()) {
    return std::nullopt;
  }
  return empty ? 0 : count;
}

std::shared_ptr<char> AlignedMemory(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  char* memory = static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
  TANDEM_CHECK_MSG(memory != nullptr, "out of memory");
  return {memory, [](char* p) { std::free(p); }};
}

}  // namespace

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Storage> storage)
    : dtype_(dtype), shape_(std::move(shape)), storage_(std::move(storage)) {
  const std::optional<size_t> count = CountOf(dtype_, shape_);
  TANDEM_CHECK_MSG(count.has_value(),
                   absl::StrCat("no tensor can have the shape [", absl::StrJoin(shape_, ", "), "]"));
  count_ = *count;
}

Tensor Tensor::Allocate(DType dtype, Shape shape) {
  const std::optional<size_t> count = CountOf(dtype, shape);
  if (count.value_or(0) == 0) return Tensor(dtype, std::move(shape), nullptr);
  return Over(AlignedMemory(*count * SizeOf(dtype)), dtype, std::move(shape));
}

Tensor Tensor::Over(std::shared_ptr<char> memory, DType dtype, Shape shape) {
  auto storage = std::make_shared<Storage>();
  storage->memory = std::move(memory);
  storage->writable = true;
  return Tensor(dtype, std::move(shape), std::move(storage));
}

Tensor Tensor::Copy(ConstTensorView view, Shape shape) {
  Tensor tensor = Allocate(view.dtype, std::move(shape));
  TANDEM_CHECK_MSG(tensor.bytes() == view.bytes(), "the shape is not that of the elements");
  CopyBytes(tensor.mutable_data(), view.data, view.bytes());
  return tensor;
}

absl::StatusOr<Tensor> Tensor::FromBytes(DType dtype, Shape shape, Bytes bytes) {
  const std::optional<size_t> count = SizeOf(dtype) == 0 ? std::nullopt : CountOf(dtype, shape);
  if (!count.has_value() || *count * SizeOf(dtype) != bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes are no tensor of ", Name(dtype), "[",
                                                   absl::StrJoin(shape, ", "), "]"));
  }
  if (bytes.empty()) return Tensor(dtype, std::move(shape), nullptr);
  auto storage = std::make_shared<Storage>();
  storage->chunks = std::move(bytes);
  return Tensor(dtype, std::move(shape), std::move(storage));
}

const void* Tensor::data() const {
  if (storage_ == nullptr) return nullptr;
  Storage& storage = *storage_;
  absl::call_once(storage.together, [this, &storage] {
    if (storage.memory == nullptr) {
      const absl::Span<const Slice> slices = storage.chunks.slices();
      if (slices.size() == 1 && reinterpret_cast<uintptr_t>(slices[0].data()) % SizeOf(dtype_) == 0) {
        storage.data = slices[0].data();
        return;
      }
      storage.memory = AlignedMemory(storage.chunks.size());
      BytesReader(storage.chunks).Copy(storage.memory.get(), storage.chunks.size());
      storage.writable = true;
    }
    storage.data = storage.memory.get();
  });
  return storage.data;
}

void* Tensor::mutable_data() {
  const void* before = data();
  if (before == nullptr) return nullptr;
  if (!storage_->writable || storage_.use_count() != 1) {
    Tensor own = Allocate(dtype_, shape_);
    std::memcpy(own.storage_->memory.get(), before, bytes());
    *this = std::move(own);
  }
  // The tensor now differs from the chunks that it was received in.
  storage_->chunks = Bytes();
  return storage_->memory.get();
}

Bytes Tensor::Chunks() const {
  if (storage_ == nullptr || count_ == 0) return Bytes();
  if (!storage_->chunks.empty()) return storage_->chunks;
  return Bytes(Slice(storage_, storage_->memory.get(), bytes()));
}

absl::Status Tensor::WrongType(DType wanted) const {
  return absl::InvalidArgumentError(absl::StrCat("the tensor is ", ToString(), ", not of ", Name(wanted)));
}

std::string Tensor::ToString() const {
  return absl::StrCat(Name(dtype_), "[", absl::StrJoin(shape_, ", "), "]");
}

}  // namespace tandem::rpc::remote
