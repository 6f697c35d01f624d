// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/buffer_sets.h"

#include <sys/mman.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::bench {
namespace {

// Distance from one buffer to the next. The gap makes the buffers begin at different offsets in a page; at
// equal offsets all would compete for the same few cache sets.
size_t Stride(size_t bytes) {
  constexpr size_t kLine = 64, kGap = 3 * kLine;
  return (bytes + kLine - 1) / kLine * kLine + kGap;
}

}  // namespace

absl::StatusOr<BufferSets> BufferSets::Make(const BenchCase& c, int rank) {
  const size_t element = SizeOf(c.dtype);
  const size_t large = Stride(c.actual_bytes());
  const size_t set_bytes = c.in_place ? large : 2 * large;
  size_t sets = 2;
  while (sets < 16 && 2 * sets * set_bytes <= kBytes) sets *= 2;

  BufferSets result;
  result.mapped_bytes_ = sets * set_bytes;
  // Not from malloc, because its treatment of large blocks differs between programs.
  void* const memory =
      ::mmap(nullptr, result.mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", sets, " sets of buffers of ",
                                                     set_bytes, " bytes; measure smaller sizes"));
  }
  result.memory_ = memory;
  DispatchDType(c.dtype, [&](auto type) {
    using T = decltype(type);
    std::fill_n(static_cast<T*>(memory), result.mapped_bytes_ / sizeof(T), [] {
      if constexpr (std::is_integral_v<T>) return T{1};
      if constexpr (!std::is_integral_v<T>) return T(1.0f);
    }());
  });
  for (size_t s = 0; s < sets; ++s) {
    char* const first = static_cast<char*>(memory) + s * set_bytes;
    char *in = first, *out = first;
    const size_t own_part = static_cast<size_t>(rank) * c.part() * element;
    if (!c.in_place) {
      out = first + large;
    } else if (c.in_count() < c.out_count()) {
      in = first + own_part;
    } else if (c.out_count() < c.in_count()) {
      out = first + own_part;
    }
    result.ins_.push_back(in);
    result.outs_.push_back(out);
  }
  return result;
}

BufferSets::BufferSets(BufferSets&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      ins_(std::move(other.ins_)),
      outs_(std::move(other.outs_)) {}

BufferSets::~BufferSets() {
  if (memory_ != nullptr) ::munmap(memory_, mapped_bytes_);
}

}  // namespace tandem::bench
