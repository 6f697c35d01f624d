// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/gather_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/storage/gather_rows.cc"
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/storage/lookup-inl.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/row_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

// Arguments and results of the functions below.
struct Gathering {
  const Indexes& indexes;
  const RowAddress& address;
  absl::Span<const uint64_t> ids;
  char* out;
  uint32_t* missing;  // [ids.size()]
};

// Up to this size index lines are prefetched to the first-level cache: such rows are copied so quickly that
// the wait for lines in the second-level cache would show (35 of 80 ns a row).
constexpr size_t kShortRow = 64;

// Finds all rows and calls copy(row, i) for each. Returns the number of missing ids, listed in g.missing.
template <int kLocality, class Copy>
HWY_INLINE size_t GatherAs(const Gathering& g, size_t row_bytes, const Copy& copy) {
  const Ids<kLocality> keys{g.ids.data(), g.ids.size()};
  const RowAddress address = g.address;
  const char* rows[kMaxLookup];
  size_t missing = 0;
  FindAll(
      g.indexes, keys, static_cast<const char*>(address.Of(kNoSlot)), rows,
      [&](const Cell* line, size_t i) HWY_ATTR {
        const char* const row = address.Of(SlotIn(line, keys.id(i)));
        Prefetch(row, row_bytes);
        return row;
      },
      [&](size_t i) HWY_ATTR { copy(rows[i], i); },
      [&](size_t i) HWY_ATTR { g.missing[missing++] = static_cast<uint32_t>(i); });
  return missing;
}

template <size_t kDim, bool kAround>
size_t GatherFloats(const Gathering& g) {
  constexpr size_t kBytes = kDim * sizeof(float);
  constexpr int kLocality = kBytes > kShortRow ? kPrefetchLocality : 3;
  float* const out = reinterpret_cast<float*>(g.out);
  const auto copy = [&](const char* row, size_t i)
                        HWY_ATTR { LoadFloats<kDim, kAround>(row, out + i * kDim); };
  const size_t missing = GatherAs<kLocality>(g, kBytes, copy);
  if (kAround) hwy::FlushStream();
  return missing;
}

// Gathers rows of any length in any format.
size_t GatherAny(const Gathering& g, const RowFormat& form) {
  const size_t dim = form.dim;
  const size_t bytes = form.stored_bytes();
  const DType dtype = form.dtype;
  const bool as_stored = form.out == RowFormat::Out::kStored || dtype == DType::kF32;
  char* const out = g.out;
  const auto copy = [&](const char* row, size_t i) HWY_ATTR {
    if (as_stored) {
      std::memcpy(out + i * bytes, row, bytes);
    } else {
      LoadRow(dtype, row, dim, reinterpret_cast<float*>(out) + i * dim);
    }
  };
  return bytes > kShortRow ? GatherAs<kPrefetchLocality>(g, bytes, copy) : GatherAs<3>(g, bytes, copy);
}

template <bool kAround>
size_t GatherFloatsOf(const Gathering& g, const RowFormat& form) {
  if (form.dim == 16) return GatherFloats<16, kAround>(g);
  if (form.dim == 32) return GatherFloats<32, kAround>(g);
  if (form.dim == 64) return GatherFloats<64, kAround>(g);
  if (form.dim == 128) return GatherFloats<128, kAround>(g);
  return GatherAny(g, form);
}

// Returns the number of missing ids, whose positions it writes to `missing`.
size_t GatherRowsOf(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
                    const RowFormat& form, char* out, uint32_t* missing) {
  const Gathering g{indexes, address, ids, out, missing};
  if (form.dtype != DType::kF32) return GatherAny(g, form);
  constexpr size_t kLine = 64;
  const bool around =
      form.out == RowFormat::Out::kFloatsAround && reinterpret_cast<uintptr_t>(out) % kLine == 0;
  return around ? GatherFloatsOf<true>(g, form) : GatherFloatsOf<false>(g, form);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/status.h"

namespace tandem::ps {

HWY_EXPORT(GatherRowsOf);

void GatherRows(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
                const RowFormat& form, char* out, uint32_t first, std::vector<uint32_t>* missing) {
  TANDEM_CHECK(ids.size() <= kMaxLookup);
  uint32_t absent[kMaxLookup];
  const size_t count = HWY_DYNAMIC_DISPATCH(GatherRowsOf)(indexes, address, ids, form, out, absent);
  for (size_t k = 0; k < count; ++k) missing->push_back(first + absent[k]);
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
