// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_MATRIX_H_
#define TANDEM_WORKER_NN_MATRIX_H_

// Row-major matrix views and the buffers behind them. A view does not own its memory. `ld` is the distance in
// floats between rows, so that a layer can write its output into some columns of the next layer's input.

#include <cstddef>
#include <new>
#include <vector>

namespace tandem::worker {

struct ConstMatrix {
  const float* data = nullptr;
  size_t ld = 0;
  size_t cols = 0;
};

struct Matrix {
  float* data = nullptr;
  size_t ld = 0;
  size_t cols = 0;

  operator ConstMatrix() const { return {data, ld, cols}; }
};

// Alignment in bytes: a cache line, and also an AVX-512 vector.
inline constexpr size_t kAlignment = 64;

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(kAlignment)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(kAlignment)); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

// Grows `buffer` to at least `size` floats and returns its data. Never shrinks it, so that a training loop
// over equal batches allocates only once.
inline float* Grow(AlignedFloats& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_MATRIX_H_
