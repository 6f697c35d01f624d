// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/lookup.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/storage/lookup.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/storage/lookup-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

template <class Keys>
HWY_INLINE void FindCellsOf(const Indexes& indexes, const Keys keys, const Cell** cells) {
  FindAll(
      indexes, keys, static_cast<const Cell*>(nullptr), cells,
      [&](const Cell* line, size_t i) HWY_ATTR { return CellIn(line, keys.id(i)); }, [](size_t) {},
      [](size_t) {});
}

void FindCellsOfIds(const Indexes& indexes, const uint64_t* ids, size_t count, const Cell** cells) {
  FindCellsOf(indexes, Ids<>{ids, count}, cells);
}

void FindCellsOfItems(const Indexes& indexes, const Grouping::Item* items, size_t count, const Cell** cells) {
  FindCellsOf(indexes, Items{items, count}, cells);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/status.h"

namespace tandem::ps {

HWY_EXPORT(FindCellsOfIds);
HWY_EXPORT(FindCellsOfItems);

void FindCells(const Indexes& indexes, absl::Span<const uint64_t> ids, const RowIndex::Cell** cells) {
  TANDEM_CHECK(ids.size() <= kMaxLookup);
  HWY_DYNAMIC_DISPATCH(FindCellsOfIds)(indexes, ids.data(), ids.size(), cells);
}
void FindCells(const Indexes& indexes, absl::Span<const Grouping::Item> items, const RowIndex::Cell** cells) {
  TANDEM_CHECK(items.size() <= kMaxLookup);
  HWY_DYNAMIC_DISPATCH(FindCellsOfItems)(indexes, items.data(), items.size(), cells);
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
