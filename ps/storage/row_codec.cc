// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/storage/row_codec.cc"
#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_codec.h"
#include "ps/storage/row_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

// Rows are prefetched this many rows ahead, so that they arrive while earlier ones are copied.
constexpr size_t kRowsAhead = 32;

// Calls copy(row, out) for each row that is not nullptr.
template <class Copy>
HWY_INLINE void ForEachRow(absl::Span<const char* const> rows, size_t row_bytes, size_t dim, float* out,
                           const Copy& copy) {
  const size_t count = rows.size();
  const auto prefetch = [&](size_t r) HWY_ATTR {
    if (rows[r] != nullptr) Prefetch(rows[r], row_bytes);
  };
  for (size_t r = 0; r < std::min(kRowsAhead, count); ++r) prefetch(r);
  for (size_t r = 0; r < count; ++r, out += dim) {
    if (r + kRowsAhead < count) prefetch(r + kRowsAhead);
    if (rows[r] != nullptr) copy(rows[r], out);
  }
}

template <size_t kDim>
void LoadFixedLength(absl::Span<const char* const> rows, float* out) {
  ForEachRow(rows, kDim * sizeof(float), kDim, out, LoadFloats<kDim>);
}

void LoadRowsOf(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out) {
  if (dtype == DType::kF32) {
    if (dim == 16) return LoadFixedLength<16>(rows, out);
    if (dim == 32) return LoadFixedLength<32>(rows, out);
    if (dim == 64) return LoadFixedLength<64>(rows, out);
    if (dim == 128) return LoadFixedLength<128>(rows, out);
  }
  ForEachRow(rows, dim * SizeOf(dtype), dim, out,
             [&](const char* row, float* to) HWY_ATTR { LoadRow(dtype, row, dim, to); });
}

template <class Format>
HWY_INLINE void Store16(char* row, size_t dim, const float* values, const uint64_t* key) {
  constexpr size_t kBlock = 64;
  uint16_t chances[kBlock] = {};
  auto* const to = reinterpret_cast<uint16_t*>(row);
  for (size_t begin = 0; begin < dim; begin += kBlock) {
    const size_t count = std::min(kBlock, dim - begin);
    for (size_t i = 0; key != nullptr && i < count; i += 4) {
      const uint64_t random = Mix64(*key + 0xd1342543de82ef95ull * (begin + i));
      for (size_t k = 0; k < 4; ++k) chances[i + k] = static_cast<uint16_t>(random >> (16 * k));
    }
    ForEachVector(count, [&](auto d, size_t i) HWY_ATTR {
      const hn::Rebind<uint16_t, decltype(d)> d16;
      const hn::RebindToUnsigned<decltype(d)> du;
      const hn::RebindToSigned<decltype(d)> di;
      const auto chance = hn::PromoteTo(du, hn::LoadU(d16, chances + i));
      const auto bits = Format::FromFloat(d, hn::LoadU(d, values + begin + i), chance, key == nullptr);
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, to + begin + i);
    });
  }
}

void StoreRowsOf(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
                 const uint64_t* keys) {
  for (size_t r = 0; r < rows.size(); ++r, values += dim) {
    const uint64_t* const key = keys == nullptr ? nullptr : keys + r;
    if (dtype == DType::kF16) {
      Store16<Float16Lanes>(rows[r], dim, values, key);
    } else if (dtype == DType::kBF16) {
      Store16<BFloat16Lanes>(rows[r], dim, values, key);
    } else {
      auto* const to = reinterpret_cast<float*>(rows[r]);
      ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::LoadU(d, values + i), d, to + i); });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::ps {

HWY_EXPORT(LoadRowsOf);
HWY_EXPORT(StoreRowsOf);

void LoadRows(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadRowsOf)(dtype, rows, dim, out);
}
void StoreRows(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
               const uint64_t* rounding_keys) {
  HWY_DYNAMIC_DISPATCH(StoreRowsOf)(dtype, rows, dim, values, rounding_keys);
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
